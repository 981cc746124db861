"""What timed steps return is looked at, before and after the timing, and never within it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Resettable
from pytest_gpuperf.timing.compare import Tolerance, compare
from pytest_gpuperf.timing.measure import measure
from pytest_gpuperf.timing.metering import meter
from pytest_gpuperf.timing.overlap import overlap
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import Step
from tests.ranks.conftest import Call

SHORT = Sampling(budget=0.01, window=0.01)
SMOKE = Sampling(smoke=True)


def ones(ctx: Context, *, counts: bool = True) -> Step:
    """A step that returns how often it was called."""
    x = torch.zeros(1, dtype=torch.float64, device=ctx.device)
    return lambda: x.add_(1) if counts else torch.ones(1, dtype=torch.float64, device=ctx.device)


def again(ctx: Context, *, counts: bool = True) -> Step:
    """Return a step whose inputs are restored before each sample."""
    x = torch.zeros(1, dtype=torch.float64, device=ctx.device)
    return Resettable(lambda: x.add_(1), x.zero_)


def by_measure(ctx: Context, program: Any, sampling: Sampling, verify: Any) -> None:
    measure(ctx, program, {}, sampling, verify)


def by_meter(ctx: Context, program: Any, sampling: Sampling, verify: Any) -> None:
    meter(ctx, program, {}, sampling, (), verify)


def by_compare(ctx: Context, program: Any, sampling: Sampling, verify: Any) -> None:
    compare(ctx, program, program, {}, sampling, Tolerance(), verify)


def by_overlap(ctx: Context, program: Any, sampling: Sampling, verify: Any) -> None:
    overlap(ctx, [program, ones, ones], {}, sampling, verify)


VERBS = [by_measure, by_meter, by_compare, by_overlap]
Verb = Callable[[Context, Any, Sampling, Any], None]


def looked_at(ctx: Context, verb: Verb, program: Any, sampling: Sampling) -> list[tuple[float, int]]:
    """What the outputs were and of which steps, at each look."""
    looks: list[tuple[float, int]] = []
    verb(ctx, program, sampling, lambda _, output, steps: looks.append((output.item(), steps)))
    return looks


@pytest.mark.parametrize("sampling", [SHORT, SMOKE], ids=["measured", "smoke"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_first_step_and_one_after_the_last_are_looked_at_and_all_are_counted(
    call: Call, verb: Verb, sampling: Sampling
) -> None:
    for looks in call(looked_at, verb, ones, sampling):
        assert len(looks) == (4 if verb is by_compare else 2)
        assert all(output == steps for output, steps in looks)
        assert max(steps for _, steps in looks) > 2


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb is not by_meter])
def test_a_step_whose_inputs_are_put_back_is_always_the_first(call: Call, verb: Verb) -> None:
    for looks in call(looked_at, verb, again, SHORT):
        assert looks[0] == looks[-1] == (1.0, 1)


def right_until(last: int) -> Any:
    """A step that is wrong afterwards, on rank 1."""

    def program(ctx: Context) -> Step:
        taken = []

        def step() -> torch.Tensor:
            taken.append(1)
            return torch.full((1,), float(ctx.rank == 1 and len(taken) > last))

        return step

    return program


def zero(ctx: Context, output: torch.Tensor, steps: int) -> None:
    assert not output.any(), f"{output.item()} on rank {ctx.rank}"


@pytest.mark.parametrize(("last", "step"), [(0, "1"), (3, r"\d+")], ids=["at once", "later"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_output_is_an_error_that_names_the_step_and_the_program(
    call: Call, verb: Verb, last: int, step: str
) -> None:
    said = rf"step {step} of the timed program \S*right_until\S* went wrong: 1\.0 on rank 1"
    with pytest.raises(AssertionError, match=said):
        call(verb, right_until(last), SHORT, zero)
