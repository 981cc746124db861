"""How each size of a sweep is sampled."""

from collections.abc import Callable, Sequence
from unittest import mock

import pytest

from pytest_gpuperf import Context
from pytest_gpuperf.timing.clock import HostClock
from pytest_gpuperf.timing.sampling import MAX_STEPS_PER_SAMPLE, MAX_STEPS_PER_SWEPT, Sampling
from pytest_gpuperf.timing.sweep import sweep
from tests.ranks.conftest import Call


def nothing(ctx: Context, *, sizes: Sequence[int]) -> Callable[[int], Callable[[], None]]:
    """Steps that take no time."""
    return lambda nbytes: lambda: None


def steps_of_samples(ctx: Context) -> list[int]:
    """How many steps a sample of each size has."""
    return [samples.steps_per_sample for samples in sweep(ctx, nothing, {}, [1, 2], Sampling(budget=0.1))]


def test_a_sample_of_a_small_size_has_fewer_steps_than_one_of_a_single_size(call: Call) -> None:
    assert call(steps_of_samples) == [[MAX_STEPS_PER_SWEPT] * 2] * 2
    assert MAX_STEPS_PER_SWEPT < MAX_STEPS_PER_SAMPLE


def looked_at(ctx: Context, only: Sequence[int]) -> list[int]:
    """The sizes whose steps are looked at for unfinished work."""
    found: list[int] = []

    def step_of(nbytes: int) -> Callable[[], int]:
        return lambda: nbytes

    def look(clock: HostClock, step: Callable[[], int], steps: int) -> tuple[float, float]:
        found.append(step())
        return clock.time(step, steps), 0.0

    with mock.patch.object(HostClock, "unfinished", look):
        sweep(ctx, lambda ctx, *, sizes: step_of, {}, [1, 2, 4, 8], Sampling(budget=0.1), only=only)
    return found


@pytest.mark.parametrize(("only", "looked"), [((), [1, 8]), ((2,), []), ((1, 4), [1])])
def test_the_smallest_and_the_largest_size_are_looked_at_for_unfinished_work(
    call: Call, only: Sequence[int], looked: list[int]
) -> None:
    assert call(looked_at, only) == [looked] * 2
