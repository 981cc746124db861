"""Steps between two looks at the counters; the counters say what the tests have them say."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Metric, Readings, Resettable
from pytest_gpuperf.figures.conditions import Conditions, Gate, Tripped
from pytest_gpuperf.figures.readings import RankReading
from pytest_gpuperf.hardware.device import Counters
from pytest_gpuperf.timing import metering
from pytest_gpuperf.timing.metering import meter
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import Step
from tests.hardware.fake_devices import FakeDevices
from tests.ranks.conftest import Call

STEP = 0.01  # seconds that a step takes at least
SENT = 100  # bytes a step, twice as many on rank 1


def counted(ctx: Context, window: float, *, smoke: bool) -> tuple[RankReading, int]:
    """The reading of a step that moves counters, and how many steps were taken in all."""
    moved = {"steps": 0}

    def program(ctx: Context) -> Step:
        x = torch.ones(1)

        def step() -> None:
            moved["steps"] += 1
            time.sleep(STEP)  # an all_reduce alone takes ten times as long one moment as the next
            dist.all_reduce(x)

        return step

    def read(uuid: str) -> Counters:
        assert uuid == f"GPU-{ctx.rank}"
        nbytes = SENT * (1 + ctx.rank) * moved["steps"]
        return Counters(1000.0 + 0.5 * moved["steps"], nbytes, 2 * nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metering, "find_devices", lambda: FakeDevices(counters=read))
        reading = meter(ctx, program, {}, Sampling(window=window, smoke=smoke), ("GPU-0", "GPU-1"))
    return reading, moved["steps"]


def test_counters_are_read_around_steps_that_fill_the_window(call: Call) -> None:
    (first, steps), (second, _) = call(lambda ctx: counted(ctx, 0.2, smoke=False))
    assert first.steps == second.steps > 1
    assert steps == first.steps + metering._WARMUP_STEPS + metering._ESTIMATE_STEPS
    assert first.seconds >= first.steps * STEP
    assert 0.05 < first.seconds < 20
    readings = Readings((first, second))
    assert (first.joules, first.sent, first.received) == (0.5 * first.steps, 100 * first.steps, 200 * first.steps)
    energy, moved = readings.energy, readings.moved
    assert energy is not None
    assert moved is not None
    assert (energy.value, energy.unit, energy.better, energy.clock) == (1.0, "J", "lower", "counter")
    assert (moved.value, moved.unit) == (400.0, "B")


@pytest.mark.parametrize(("window", "steps"), [(1.0, 7), (0.9, 6), (0.01, 1)])
def test_the_window_is_filled_on_the_slowest_rank(monkeypatch: pytest.MonkeyPatch, window: float, steps: int) -> None:
    monkeypatch.setattr(metering, "_meet", lambda *, cuda: None)
    monkeypatch.setattr(metering, "reduce_to_slowest", lambda seconds, device: [0.15])
    alone: Any = SimpleNamespace(device=torch.device("cpu"))
    planned, taken = metering._estimate_steps(alone, lambda: None, Sampling(window=window))
    assert (planned, taken) == (steps, metering._WARMUP_STEPS + metering._ESTIMATE_STEPS)


def test_nobody_steps_while_the_counters_of_another_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def program(ctx: Context) -> Step:
        return lambda: done.append("step")

    def read(uuid: str) -> Counters:
        done.append("read")
        return metering.NOTHING

    monkeypatch.setattr(metering, "_meet", lambda *, cuda: done.append("meet"))
    monkeypatch.setattr(metering, "find_devices", lambda: FakeDevices(counters=read))
    alone: Any = SimpleNamespace(rank=0, device=torch.device("cpu"))
    meter(alone, program, {}, Sampling(smoke=True), ("GPU-0",))
    assert done == ["meet", "meet", "read", "meet", "step", "meet", "read"]


def released(ctx: Context) -> list[str]:
    """What was done in which order."""
    done: list[str] = []

    def program(ctx: Context) -> Step:
        done.append("prepared")
        return lambda: None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metering, "release_memory", lambda device: done.append(f"released on {device}"))
        meter(ctx, program, {}, Sampling(smoke=True), ())
    return done


def test_the_peak_is_of_this_program_alone(call: Call) -> None:
    assert call(released) == [["released on cpu", "prepared"]] * 2


def test_a_smoke_run_takes_one_step(call: Call) -> None:
    assert [steps for _, steps in call(lambda ctx: counted(ctx, 0.2, smoke=True))] == [1, 1]


def test_cpus_count_nothing(call: Call) -> None:
    def idle(ctx: Context) -> Step:
        return lambda: None

    ranks: list[RankReading] = call(meter, idle, {}, Sampling(smoke=True), ())
    readings = Readings(tuple(ranks))
    assert (readings.energy, readings.moved, readings.peak_memory, readings.traffic("all_reduce", 8)) == (None,) * 4
    assert readings.seconds == max(rank.seconds for rank in ranks)


def with_reset(ctx: Context) -> Step:
    return Resettable(lambda: None, lambda: None)


def without_step(ctx: Context) -> None:
    return None


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (with_reset, r"^the step of with_reset has a reset, and counters go on counting meanwhile: meter a step that"),
        (without_step, r"^timed program without_step returned None, not a step"),
    ],
    ids=["a reset", "no step"],
)
def test_what_cannot_be_metered_is_refused(call: Call, program: Callable[..., Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(meter, program, {}, Sampling(), ())


def reading(**changes: Any) -> RankReading:
    """Return a rank's reading of 10 steps."""
    values: dict[str, Any] = {
        "steps": 10,
        "seconds": 2.0,
        "joules": 50.0,
        "sent": 1500.0,
        "received": 1400.0,
        "peak_bytes": 4096,
    }
    return RankReading(**{**values, **changes})


def test_figures_are_of_one_step() -> None:
    readings = Readings((reading(), reading(joules=30.0, received=1600.0, peak_bytes=8192, seconds=3.0)))
    assert readings.energy == Metric(8.0, "J", "lower", samples=10, clock="counter")
    assert readings.moved == Metric(160.0, "B", "lower", samples=10, clock="counter")
    assert readings.peak_memory == Metric(8192, "B", "lower", samples=10, clock="counter")
    assert (readings.seconds, readings.steps, readings.world_size) == (0.3, 10, 2)


def test_traffic_is_over_the_least_that_the_collective_needs() -> None:
    four = Readings((reading(),) * 4)
    # 2 (4 - 1) / 4 of 100 bytes are the least: 150, just what was sent.
    assert four.traffic("all_reduce", 100) == Metric(1.0, "x", "lower", samples=10, clock="counter")
    twice = four.traffic("all_gather", 100)
    assert twice is not None
    assert twice.value == 2.0
    with pytest.raises(ValueError, match="no bus bandwidth is defined for 'sort'"):
        four.traffic("sort", 100)


@pytest.mark.parametrize("name", ["joules", "sent", "peak_bytes"])
@pytest.mark.parametrize("value", [None, 0])
def test_what_one_rank_cannot_tell_is_no_figure(name: str, value: int | None) -> None:
    lacking = reading(**{name: value, "received": value} if name == "sent" else {name: value})
    both = Readings((reading(), lacking) if value is None else (lacking, lacking))
    figure = {"joules": both.energy, "sent": both.moved, "peak_bytes": both.peak_memory}[name]
    assert figure is None


def test_what_was_observed_goes_with_the_figures() -> None:
    brake = (Tripped("GPU-0", Gate.POWER_BRAKE),)
    hot = Readings((reading(),), Conditions(brake, power_capped=True))
    assert hot.energy is not None
    assert (hot.energy.invalid, hot.energy.power_capped) == (brake, True)
