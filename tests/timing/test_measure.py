"""How a step is warmed up, sampled and reset on the ranks; the clocks say what the tests have them say."""

import time
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Resettable
from pytest_gpuperf.figures.comparison import block_ratios
from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.timing import clock as clock_module
from pytest_gpuperf.timing import measure as measure_module
from pytest_gpuperf.timing.clock import HostClock, Reset
from pytest_gpuperf.timing.compare import Tolerance, compare
from pytest_gpuperf.timing.interleaving import interleave
from pytest_gpuperf.timing.measure import Timed, measure
from pytest_gpuperf.timing.sampling import (
    FIRST_STEPS,
    MAX_STEPS_PER_SAMPLE,
    MAX_WARMUP_BATCHES,
    MIN_SAMPLES,
    WARMUP_BATCH,
    Sampling,
)
from pytest_gpuperf.timing.stepping import Step
from pytest_gpuperf.timing.verification import Verification
from tests.ranks.conftest import Call


class ScriptedClock:
    """Calls the step, and gives the times that it was made with, the last one for ever."""

    name = "scripted"

    def __init__(
        self,
        times: list[float],
        *,
        left: float = 0.0,
        host_bound: bool = False,
        waits: bool = False,
        late_calls: frozenset[int] = frozenset(),
    ) -> None:
        self._times = times
        self.left = left
        self._late_calls = late_calls
        self.host_bound, self.waits = host_bound, waits
        self.calls = self.begun = 0

    @property
    def late(self) -> bool:
        """Whether the host was late for the last call."""
        return self.calls in self._late_calls

    def begin(self) -> None:
        """Takes note of how many calls were before."""
        self.begun = self.calls

    def script(self, times: list[float]) -> None:
        """Begins anew, with these times."""
        self._times, self.calls = times, 0

    def time(self, step: Step, steps: int, reset: Reset | None = None) -> float:
        """Seconds of all steps."""
        for _ in range(steps):
            step()
        self.calls += 1
        return steps * self._times[min(self.calls, len(self._times)) - 1]


def alone(clock: ScriptedClock, monkeypatch: pytest.MonkeyPatch) -> Timed:
    """A step of the only rank, in this process."""
    monkeypatch.setattr(measure_module, "reduce_to_slowest", lambda seconds, device: list(seconds))
    return Timed(cast(Any, SimpleNamespace(device=torch.device("cpu"))), clock, lambda: None, Sampling())


def test_the_clock_hears_where_the_warm_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock([10e-3])
    timed = alone(clock, monkeypatch)
    planned = clock.calls
    timed.warm_up()
    assert clock.begun == planned + WARMUP_BATCH == clock.calls - 2 * WARMUP_BATCH


def test_samples_by_which_a_step_was_found_steady_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock([10e-3] * 7 + [11e-3] * WARMUP_BATCH + [10e-3, 10.01e-3, 10.02e-3] * 2)
    timed = alone(clock, monkeypatch)
    timed.warm_up()
    calls = clock.calls
    assert timed.sample_until_precise() == [10e-3, 10.01e-3, 10.02e-3] * 2
    assert clock.calls == calls


def test_the_last_batch_of_the_plans_steps_is_the_first_that_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock([10e-3] * 4 + [10e-3, 10.01e-3, 10.02e-3] * 2)
    timed = alone(clock, monkeypatch)
    timed.warm_up()
    calls = clock.calls
    assert timed.sample_until_precise() == [10e-3, 10.01e-3, 10.02e-3] * 2
    assert clock.calls == calls == 10


def test_of_a_long_step_the_warm_up_is_no_longer_than_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock([60e-3])
    timed = alone(clock, monkeypatch)
    timed.warm_up()
    assert clock.calls == 1 + timed.plan.warmup_steps == 2


def test_a_step_that_never_settles_is_sampled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock([10e-3 * 1.1**call for call in range(100)])
    timed = alone(clock, monkeypatch)
    planned = clock.calls
    timed.warm_up()
    calls = clock.calls
    assert calls - planned == (2 + timed.plan.settling_batches) * WARMUP_BATCH
    assert clock.begun == calls
    assert len(timed.sample_until_precise()) == clock.calls - calls


def test_a_step_by_which_the_host_is_held_up_is_warm_after_a_quarter_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each sample of 1 ms takes the host 0.05 s: 50 of the plan would take it 2.5 s."""
    clock = ScriptedClock([1e-3])
    timed = alone(clock, monkeypatch)
    monkeypatch.setattr("time.perf_counter", lambda: clock.calls * 0.05)
    calls = clock.calls
    timed.warm_up()
    assert (timed.plan.warmup_steps, timed.plan.settling_batches) == (50, MAX_WARMUP_BATCHES)
    assert clock.calls - calls == 2 * WARMUP_BATCH


@pytest.mark.parametrize(
    ("step_seconds", "most_steps", "first", "samples"),
    [(0.5e-3, MAX_STEPS_PER_SAMPLE, FIRST_STEPS, 1), (0.5e-3, 50, FIRST_STEPS, 0), (2e-3, MAX_STEPS_PER_SAMPLE, 0, 0)],
    ids=["short", "of a sweep", "long"],
)
def test_the_clock_does_not_see_the_first_short_steps_on_a_warm_device_and_one_sample_of_several_does_not_count(
    monkeypatch: pytest.MonkeyPatch, step_seconds: float, most_steps: int, first: int, samples: int
) -> None:
    """DistributedDataParallel waits in its first ten: what the clock's gate learns from these is true no longer."""
    monkeypatch.setattr(measure_module, "reduce_to_slowest", lambda seconds, device: list(seconds))
    clock = ScriptedClock([step_seconds])
    steps: list[int] = []
    context = cast(Any, SimpleNamespace(device=torch.device("cpu")))
    seen: list[tuple[int, int]] = []

    def look(context: Context, output: None, taken: int) -> None:
        seen.append((taken, len(steps)))

    verification = Verification.of(look, context, look)
    timed = Timed(context, clock, lambda: steps.append(1), Sampling(), verification, warm=True, most_steps=most_steps)
    before, calls = len(steps), clock.calls
    timed.warm_up()
    first += samples * timed.plan.steps_per_sample
    assert (len(steps) - before, clock.calls - calls) == (first, samples)
    assert clock.begun == clock.calls
    timed.verify()
    assert seen[-1] == (before + first + 1, before + first + 1)


@pytest.mark.parametrize("verified", [True, False])
def test_the_first_step_is_taken_once_before_it_is_timed(monkeypatch: pytest.MonkeyPatch, verified: bool) -> None:
    monkeypatch.setattr(measure_module, "reduce_to_slowest", lambda seconds, device: list(seconds))
    taken, context = [], cast(Any, SimpleNamespace(device=torch.device("cpu")))
    clock = ScriptedClock([2.0])
    look = Verification(lambda ctx, output, steps: taken.append(steps), context, "program") if verified else None
    steps: list[int] = []
    Timed(context, clock, lambda: steps.append(clock.calls), Sampling(), look)
    assert steps == [0, 0]  # the first, and that of the estimate, which the clock counts when it ends
    assert taken == ([1] if verified else [])


def test_a_slow_look_makes_no_plan_for_a_slow_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert alone(ScriptedClock([0.2e-3, 50e-3, 10e-3]), monkeypatch).plan.steps_per_sample == 5


@pytest.mark.parametrize(("first", "estimates"), [(4.9e-3, 2), (5.1e-3, 1)])
def test_a_short_step_is_estimated_twice(monkeypatch: pytest.MonkeyPatch, first: float, estimates: int) -> None:
    clock = ScriptedClock([first, 1e-3])
    alone(clock, monkeypatch)
    assert clock.calls == estimates


@pytest.mark.parametrize(("host_seconds", "samples"), [(0.004, 42), (0.1, 4), (1.0, 4)])
def test_the_budget_is_of_the_hosts_clock(monkeypatch: pytest.MonkeyPatch, host_seconds: float, samples: int) -> None:
    """Samples of 1 ms on the device of which each takes the host longer; 0.15 s, looked at after 4, 6, 12 and so on."""
    clock = ScriptedClock([1e-3 * (1 + index % 7 / 10) for index in range(500)])
    timed = alone(clock, monkeypatch)
    monkeypatch.setattr("time.perf_counter", lambda: clock.calls * host_seconds)
    assert timed.plan.samples == 150
    assert len(timed.sample_until_precise()) == samples


@pytest.mark.parametrize(("host_seconds", "more"), [(0.001, 9), (0.02, 6), (0.026, 0)])
def test_the_samples_of_a_steady_step_are_part_of_the_budget(
    monkeypatch: pytest.MonkeyPatch, host_seconds: float, more: int
) -> None:
    """The budget is 0.15 s or 15 samples, checked after every 6; the warm-up's last 6 are the first."""
    clock = ScriptedClock([10e-3 * (1 + index % 3 / 10) for index in range(500)])
    timed = alone(clock, monkeypatch)
    monkeypatch.setattr("time.perf_counter", lambda: clock.calls * host_seconds)
    timed.warm_up()
    calls = clock.calls
    assert len(timed.sample_until_precise()) == 6 + more
    assert clock.calls - calls == more


def sampled(ctx: Context, of_rank: list[list[float]], sampling: Sampling) -> tuple[int, int]:
    """Number of samples, and of samples planned."""
    timed = Timed(ctx, ScriptedClock(of_rank[ctx.rank]), lambda: None, sampling)
    return len(timed.sample_until_precise()), timed.plan.samples


def of_late_hosts(ctx: Context, late_calls: list[frozenset[int]]) -> tuple[float, int]:
    """The slowest sample and the number of samples, if late ones take five times as long."""
    times = [10e-3] * 3 + [
        50e-3 if call in late_calls[ctx.rank] else 10e-3 * (1 + call % 3 / 30) for call in range(4, 300)
    ]
    sampling = Sampling(samples=20, precision=0.0, budget=10.0)
    timed = Timed(ctx, ScriptedClock(times, late_calls=late_calls[ctx.rank]), lambda: None, sampling)
    samples = timed.sample_until_precise()
    return max(samples), len(samples)


def test_a_sample_that_waited_for_a_host_is_taken_again_on_all_ranks(call: Call) -> None:
    slow, counts = zip(*call(of_late_hosts, [frozenset({5, 14}), frozenset({20})]), strict=True)
    assert counts == (20, 20)
    assert max(slow) < 11e-3


def test_samples_of_which_a_third_are_late_leave_these_out(call: Call) -> None:
    slow, counts = zip(*call(of_late_hosts, [frozenset(range(4, 200, 3)), frozenset()]), strict=True)
    assert counts == (20, 20)
    assert max(slow) < 11e-3


def test_a_step_for_which_the_host_is_late_in_most_samples_keeps_them(call: Call) -> None:
    most = frozenset(call for call in range(4, 200) if call % 3)
    slow, counts = zip(*call(of_late_hosts, [most, frozenset()]), strict=True)
    assert counts == (20, 20)
    assert slow[0] == 50e-3


def late_block(ctx: Context) -> list[list[float]]:
    """Samples of two arms, of which rank 1 is late in the second block's last one."""
    clocks = [ScriptedClock([10e-3], late_calls=frozenset({7} if arm == ctx.rank == 1 else ())) for arm in range(2)]
    arms = [Timed(ctx, clock, lambda: None, Sampling(samples=10, budget=10.0)) for clock in clocks]
    for clock, arm in zip(clocks, arms, strict=True):
        clock.script([10e-3 + count * 1e-5 for count in range(100)])
        assert arm.plan.samples == 10
    return interleave(arms, lambda blocks: block_ratios(*blocks), 0.0, ctx.device)


def test_a_block_with_a_sample_that_waited_for_a_host_is_taken_again(call: Call) -> None:
    for arms in call(late_block):
        assert [len(arm) for arm in arms] == [10, 10]
        assert [round((seconds - 10e-3) / 1e-5) for seconds in arms[0]] == [*range(6), 8, 9, 10, 11]


def scattered(by: float) -> list[float]:
    """Times of 10 ms on average; the first three are the estimate's."""
    return [10e-3] * 3 + [10e-3 * (1 + by * (-1) ** i * (i % 7) / 7) for i in range(200)]


def test_sampling_ends_once_the_median_is_known(call: Call) -> None:
    steady = [scattered(1e-4)] * 2
    assert call(sampled, steady, Sampling()) == [(6, 15)] * 2


def test_sampling_goes_on_to_the_budget_where_it_is_not(call: Call) -> None:
    noisy = [scattered(0.3)] * 2
    assert call(sampled, noisy, Sampling(precision=0.001)) == [(15, 15)] * 2
    assert call(sampled, noisy, Sampling(precision=0.001, budget=0.5)) == [(50, 50)] * 2


def test_it_goes_on_until_a_median_that_was_unsure_is_known(call: Call) -> None:
    noisy_first = [[10e-3] * 4 + [9e-3, 11e-3] * 5 + [10e-3] * 200] * 2
    (samples, planned), other = call(sampled, noisy_first, Sampling(budget=2.0))
    assert 10 < samples < planned == 200
    assert other == (samples, planned)


def test_all_ranks_take_as_many_samples_as_the_noisiest_needs(call: Call) -> None:
    assert call(sampled, [scattered(1e-5), scattered(0.3)], Sampling(precision=0.001)) == [(15, 15)] * 2


def left_open(ctx: Context, clock: ScriptedClock, smoke: bool = False) -> int:
    """Number of samples in the record of a step after which the device goes on for so long as the clock says."""
    timed = Timed(ctx, clock, lambda: None, Sampling(samples=20, precision=0.0, smoke=smoke))
    return len(timed.samples(timed.sample_until_precise()).seconds)


@pytest.mark.parametrize("left", [0.0, 199e-6])
def test_a_step_that_ends_with_its_stream_is_timed(call: Call, left: float) -> None:
    assert call(left_open, ScriptedClock([1e-3], left=left)) == [6, 6]


def test_a_step_that_leaves_work_on_other_streams_is_refused(call: Call) -> None:
    message = r"^the device went on for 300 us after the current stream had ended the step's work, which took 1000 us: "
    with pytest.raises(RuntimeError, match=message):
        call(left_open, ScriptedClock([1e-3], left=300e-6))
    assert call(left_open, ScriptedClock([1e-3], left=300e-6), True) == [2, 2]  # nothing is timed there


def test_work_that_one_rank_leaves_is_refused_by_all(call: Call) -> None:
    def of_one(ctx: Context) -> str:
        with pytest.raises(RuntimeError, match=r"^the device went on for 300 us after"):
            left_open(ctx, ScriptedClock([1e-3], left=300e-6 * ctx.rank))
        return "refused"

    assert call(of_one) == ["refused"] * 2


class HeldUp(ScriptedClock):
    """Sees 5 ms of work left after so many of ten samples, since its host is held up."""

    def __init__(self, of_ten: int) -> None:
        super().__init__([1e-3 * (1 + call % 3 / 30) for call in range(100)])  # no median of six is precise enough
        self._of_ten = of_ten

    def time(self, step: Step, steps: int, reset: Reset | None = None) -> float:
        """Seconds of all steps."""
        seconds = super().time(step, steps, reset)
        self.left = 5e-3 if self.calls % 10 < self._of_ten else 0.0
        return seconds


@pytest.mark.parametrize("of_ten", [(0, 0), (1, 0), (4, 4)])
def test_a_host_that_is_held_up_after_some_samples_is_no_reason_to_refuse(call: Call, of_ten: tuple[int, int]) -> None:
    assert call(lambda ctx: left_open(ctx, HeldUp(of_ten[ctx.rank]))) == [20, 20]


def test_work_that_most_samples_leave_is_refused(call: Call) -> None:
    def refused(ctx: Context) -> str:
        with pytest.raises(RuntimeError, match=r"^the device went on for 5000 us after"):
            left_open(ctx, HeldUp(6 if ctx.rank == 1 else 1))
        return "refused"

    assert call(refused) == ["refused"] * 2


@pytest.mark.parametrize(("host_bound", "waits"), [(True, False), (False, True), (False, False)])
def test_samples_say_whether_they_are_the_hosts_and_what_it_does(call: Call, host_bound: bool, waits: bool) -> None:
    def of(ctx: Context) -> tuple[bool, bool]:
        clock = ScriptedClock([1e-3], host_bound=host_bound, waits=waits)
        samples = Timed(ctx, clock, lambda: None, Sampling(samples=10)).samples([1e-3])
        return samples.host_bound, samples.waits

    assert call(of) == [(host_bound, waits)] * 2


def warmed(ctx: Context, of_rank: list[list[float]]) -> int:
    """Samples that the warm-up takes beyond the plan's 5, which are two batches."""
    clock = ScriptedClock(of_rank[ctx.rank])
    timed = Timed(ctx, clock, lambda: None, Sampling())
    before = clock.calls
    timed.warm_up()
    return clock.calls - before - 2 * WARMUP_BATCH


@pytest.mark.parametrize(
    ("settled_after", "batches"),
    [(0, 1), (2, 3), (10**6, 8)],
    ids=["at once", "later", "never"],
)
def test_the_warm_up_lasts_until_the_step_is_steady(call: Call, settled_after: int, batches: int) -> None:
    # The sample of the estimate, 6 of the plan, then batches that are faster and faster until the step is warm.
    # The time for them is enough for 8 batches.
    script = [10e-3] * 7
    for batch in range(MAX_WARMUP_BATCHES):
        script += [10e-3 * 0.9 ** min(batch + 1, settled_after)] * WARMUP_BATCH
    # Rank 0 is steady, and goes on with the other one, which sets the pace.
    assert call(warmed, [[1e-3] * 8, script], timeout=60.0) == [batches * WARMUP_BATCH] * 2


def consumed(ctx: Context, *, log: list[str]) -> Step:
    """A step that can be taken only once before its input is put back."""
    state = {"left": 1.0}

    def step() -> torch.Tensor:
        assert state["left"] == 1.0, "the input was not put back"
        state["left"] = 0.0
        return torch.ones(1)

    def reset() -> None:
        log.append("reset")
        state["left"] = 1.0

    return Resettable(step, reset)


LONG = 1000.0
"""Seconds that each reset takes of a moved clock."""


def with_long_resets(ctx: Context, sampling: Sampling) -> tuple[RankSamples, int]:
    """Samples of a step by a clock that each reset moves, and the number of resets."""
    log, real = list[str](), time.perf_counter

    def clock() -> float:
        return real() + LONG * len(log)

    with mock.patch("time.perf_counter", clock):
        samples = measure(ctx, consumed, {"log": log}, sampling)
    return samples, len(log)


def test_a_step_is_reset_before_each_sample_and_untimed(call: Call) -> None:
    for samples, resets in call(with_long_resets, Sampling(budget=0.01)):
        assert samples.steps_per_sample == 1
        assert resets >= len(samples.seconds)
        assert max(samples.seconds) < LONG


def test_both_arms_of_a_comparison_are_reset(call: Call) -> None:
    for pair in call(compare, consumed, consumed, {"log": []}, Sampling(budget=0.02), Tolerance()):
        assert len(pair[0].seconds) == len(pair[1].seconds) >= MIN_SAMPLES


def raced(ctx: Context, budget: float) -> Any:
    """Two arms of which one takes twice as long, by sleeping."""

    def of(seconds: float) -> Any:
        def program(ctx: Context) -> Step:
            def step() -> torch.Tensor:
                time.sleep(seconds)
                return torch.ones(1)

            return step

        return program

    return compare(ctx, of(4e-3), of(2e-3), {}, Sampling(budget=budget, precision=0.2), Tolerance())


def test_blocks_end_once_the_ratio_is_known(call: Call) -> None:
    for slow, fast in call(raced, 10.0):
        assert len(slow.seconds) == len(fast.seconds)
        assert len(slow.seconds) < 200  # of which there would be time for


def test_on_cpus_the_time_begins_once_all_ranks_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    moments = iter([1.0, 3.5])

    def look() -> float:
        done.append("look at the clock")
        return next(moments)

    monkeypatch.setattr(clock_module, "time", SimpleNamespace(perf_counter=look))
    monkeypatch.setattr(dist, "barrier", lambda: done.append("meet"))
    assert HostClock().time(lambda: done.append("step"), 2, lambda: done.append("reset")) == 2.5
    assert done == ["reset", "meet", "look at the clock", "step", "step", "look at the clock"]


def test_on_a_warm_device_a_graph_is_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """That brings the graph to the device. Each replay has many steps, so the first steps are no number of replays."""
    monkeypatch.setattr(measure_module, "reduce_to_slowest", lambda seconds, device: list(seconds))
    monkeypatch.setattr(measure_module, "capture", lambda step, steps: step)
    context = cast(Any, SimpleNamespace(device=torch.device("cuda")))
    clock = ScriptedClock([0.5e-3])
    timed = Timed(context, clock, lambda: None, Sampling(cuda_graph=True), warm=True)
    calls, taken = clock.calls, timed._taken
    timed.warm_up()
    assert timed.plan.warmup_steps == 0
    assert (clock.calls - calls, timed._taken - taken) == (1, timed.plan.steps_per_sample)
