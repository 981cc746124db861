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


def test_what_follows_does_not_meet_gpus_that_are_still_at_their_power_limit() -> None:
    assert list(control.workload(2)) == ["all_reduce", "sustained matmul"]


def test_one_rank_has_nothing_to_reduce() -> None:
    assert list(control.workload(1)) == ["sustained matmul"]


class SwingingClock:
    """Time of a device whose steps take 3 % longer in three tenths of each second; at first they take half as long."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.most = 0
        self._step = step

    def time(self, step: Callable[[], object], steps: int) -> float:
        began = self.now
        self.most = max(self.most, steps)
        for _ in range(steps):
            step()
            rising = 0.5 if self.now < 0.2 else 1.0
            self.now += rising * self._step * (1.03 if self.now % 1 >= 0.7 else 1.0)
        return self.now - began


def swinging(context: Context, step: float) -> tuple[float, float, int]:
    """What is told, how long it took, and the most steps at once."""
    clock = SwingingClock(step)
    with pytest.MonkeyPatch().context() as patched:
        patched.setattr(control, "clock_for", lambda device, sampling: clock)
        patched.setattr(control, "SUSTAINED_SECONDS", {"cpu": 1.0})
        patched.setattr(control, "RISING_SECONDS", {"cpu": 0.25})
        return control.sustained(context, lambda: None), clock.now, clock.most


@pytest.mark.parametrize("step", [2e-3, 1e-4])
def test_a_device_that_swings_is_timed_for_a_whole_swing(call: Call, step: float) -> None:
    for seconds, took, most in call(swinging, step):
        assert seconds == pytest.approx(1.009 * step, rel=0.002)
        assert 1.25 <= took <= 2.7  # the steps were taken for twice as fast while the clocks rose
        assert most <= MAX_STEPS_PER_SAMPLE
