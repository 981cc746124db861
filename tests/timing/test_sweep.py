"""How each size of a sweep is sampled."""

from collections.abc import Callable, Sequence
from unittest import mock

import pytest

from pytest_gpuperf import Context
from pytest_gpuperf.timing.clock import HostClock, Reset
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


def left_by(ctx: Context, size: int) -> str:
    """What is raised by a sweep of four sizes, of which one leaves work on the device that the clock does not see."""

    def step_of(nbytes: int) -> Callable[[], int]:
        return lambda: nbytes

    def time(clock: HostClock, step: Callable[[], int], steps: int, reset: Reset | None = None) -> float:
        clock.left = 5e-3 if step() == size else 0.0
        return 1e-3

    with mock.patch.object(HostClock, "time", time), pytest.raises(RuntimeError) as raised:
        sweep(ctx, lambda ctx, *, sizes: step_of, {}, [1, 2, 4, 8], Sampling(budget=0.1))
    return str(raised.value)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_work_that_a_step_of_any_size_leaves_is_refused(call: Call, size: int) -> None:
    for message in call(left_by, size):
        assert message.startswith("the device went on for 5000 us after the current stream had ended the step's work")
