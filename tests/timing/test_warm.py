"""Only the first step that ranks time is warmed up until it is steady: the device is warm for what comes after."""

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import Context
from pytest_gpuperf.timing import compare as compare_module
from pytest_gpuperf.timing import measure as measure_module
from pytest_gpuperf.timing import overlap as overlap_module
from pytest_gpuperf.timing import sweep as sweep_module
from pytest_gpuperf.timing import trial as trial_module
from pytest_gpuperf.timing.clock import HostClock, Reset
from pytest_gpuperf.timing.compare import Tolerance, compare
from pytest_gpuperf.timing.measure import measure
from pytest_gpuperf.timing.overlap import overlap
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import Step
from pytest_gpuperf.timing.sweep import sweep
from pytest_gpuperf.timing.trial import trial
from tests.ranks.conftest import Call

SAMPLING = Sampling(budget=0.05, samples=10)
SECONDS = 2e-3
LEAST = 20
"""How many steps fewer: a cold device takes 0.05 s of them, 25."""

Program = Callable[[Context], Callable[[], torch.Tensor]]


class Even(HostClock):
    """Each step takes as long, however busy the machine is."""

    def time(self, step: Step, steps: int, reset: Reset | None = None) -> float:
        """Seconds of so many steps."""
        for _ in range(steps):
            step()
        return steps * SECONDS


def counted(counts: list[int]) -> Program:
    """A program whose steps are counted at the end of the list."""
    counts.append(0)
    place = len(counts) - 1

    def program(ctx: Context) -> Callable[[], torch.Tensor]:
        def step() -> torch.Tensor:
            counts[place] += 1
            return torch.ones(1)

        return step

    return program


def evenly(patch: pytest.MonkeyPatch) -> list[int]:
    """Counts of steps that take as long each."""
    for module in (compare_module, measure_module, overlap_module, sweep_module, trial_module):
        patch.setattr(module, "choose_clock", lambda device, sampling: Even())
    return []


def of_comparison(ctx: Context) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        counts = evenly(patch)
        compare(ctx, counted(counts), counted(counts), {}, SAMPLING, Tolerance())
    return counts


def of_overlap(ctx: Context) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        counts = evenly(patch)
        overlap(ctx, [counted(counts) for _ in range(3)], {}, SAMPLING)
    return counts


def of_a_cold_and_a_warm_device(ctx: Context, entry: str) -> list[int]:
    """How many steps the first program takes on each."""
    taken = []
    with pytest.MonkeyPatch.context() as patch:
        for warm in (False, True):
            counts = evenly(patch)
            programs = [counted(counts) for _ in range(2)]
            if entry == "measure":
                measure(ctx, programs[0], {}, SAMPLING, None, warm)
            elif entry == "compare":
                compare(ctx, programs[0], programs[1], {}, SAMPLING, Tolerance(), None, warm)
            elif entry == "overlap":
                overlap(ctx, programs, {}, SAMPLING, None, warm)
            else:
                sweep(ctx, swept(programs), {}, [1, 2], SAMPLING, None, (), warm)
            taken.append(counts[0])
    return taken


def swept(programs: list[Program]) -> Callable[..., Callable[[int], Step]]:
    """A program of two sizes, each with a step of its own."""

    def program(ctx: Context, *, sizes: tuple[int, ...]) -> Callable[[int], Step]:
        return lambda nbytes: programs[sizes.index(nbytes)](ctx)

    return program


def of_sweep(ctx: Context, only: tuple[int, ...]) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        counts = evenly(patch)
        sweep(ctx, swept([counted(counts) for _ in range(2)]), {}, [1, 2], SAMPLING, None, only)
    return counts


def of_search(ctx: Context) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        counts = evenly(patch)
        for warm in (False, True):
            trial(ctx, counted(counts), {}, SAMPLING, None, None, warm)
    return counts


def assert_others_are_warm(counts: list[int]) -> None:
    first, *others = counts
    assert all(first - other >= LEAST for other in others), counts


def test_the_second_arm_of_a_comparison_is_warm(call: Call) -> None:
    for counts in call(of_comparison):
        assert_others_are_warm(counts)


def test_the_parts_of_an_overlap_are_warm(call: Call) -> None:
    for counts in call(of_overlap):
        assert_others_are_warm(counts)


def test_the_second_configuration_of_a_search_is_warm(call: Call) -> None:
    for counts in call(of_search):
        assert_others_are_warm(counts)


def test_the_second_size_of_a_sweep_is_warm(call: Call) -> None:
    for counts in call(of_sweep, ()):
        assert_others_are_warm(counts)


@pytest.mark.parametrize("entry", ["measure", "compare", "overlap", "sweep"])
def test_what_another_measurement_left_warm_is_not_warmed_up(call: Call, entry: str) -> None:
    for counts in call(of_a_cold_and_a_warm_device, entry):
        assert_others_are_warm(counts)
