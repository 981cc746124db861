"""The control workload on real ranks, and on a made-up clock."""

from collections.abc import Callable

import pytest

from pytest_gpuperf import Context
from pytest_gpuperf.timing import control
from pytest_gpuperf.timing.sampling import MAX_STEPS_PER_SAMPLE
from tests.ranks.conftest import Call


def every_part(context: Context) -> dict[str, float]:
    return {name: part(context) for name, part in control.workload(context.world_size).items()}


def test_its_parts_are_timed_and_all_ranks_agree(call: Call) -> None:
    first, second = call(every_part)
    assert first == second
    assert sorted(first) == ["all_reduce", "sustained matmul"]
    assert all(0 < seconds < 1 for seconds in first.values())


def test_one_rank_has_nothing_to_reduce() -> None:
    assert list(control.workload(1)) == ["sustained matmul"]


class SwingingClock:
    """Time of a device whose steps take 2 ms, and every other half second 3 % longer; it rises to that first."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self, step: Callable[[], object], steps: int) -> float:
        began = self.now
        for _ in range(steps):
            step()
            rising = 0.5 if self.now < 0.2 else 1.0
            self.now += rising * 2e-3 * (1.03 if self.now % 1 >= 0.5 else 1.0)
        return self.now - began


def swinging(context: Context) -> tuple[float, float, int]:
    """What is told, how long it took, and the most steps at once."""
    clock = SwingingClock()
    most = 0
    time = clock.time

    def watched(step: Callable[[], object], steps: int) -> float:
        nonlocal most
        most = max(most, steps)
        return time(step, steps)

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(clock, "time", watched)
        patched.setattr(control, "clock_for", lambda device: clock)
        patched.setattr(control, "SUSTAINED_SECONDS", {"cpu": 1.0})
        patched.setattr(control, "RISING_SECONDS", {"cpu": 0.25})
        return control.sustained(context, lambda: None), clock.now, most


def test_a_device_that_swings_is_timed_for_a_whole_swing(call: Call) -> None:
    for seconds, took, most in call(swinging):
        assert seconds == pytest.approx(2e-3 * 1.015, rel=0.005)
        assert 1.25 <= took <= 2.7  # the steps were taken for twice as fast while the clocks rose
        assert most <= MAX_STEPS_PER_SAMPLE
