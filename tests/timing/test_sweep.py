"""How each size of a sweep is sampled."""

from collections.abc import Callable, Sequence

from pytest_gpuperf import Context
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
