"""The device's clock, on a device and a host whose times are made up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf.timing import clock as clock_module
from pytest_gpuperf.timing.clock import LEAST_LEFT_SECONDS, CudaEventClock
from pytest_gpuperf.timing.gate import LOOK_MARGIN, MIN_SECONDS

HERTZ = 1.98e9
STEPS = 100
ON_DEVICE = 8e-6  # seconds of a step
ON_HOST = 40e-6  # to launch one


class Machine:
    """A host that enqueues and a device that follows, in seconds since the beginning."""

    def __init__(self) -> None:
        self.host = self.device = 0.0
        self.gates: list[float] = []
        self.elsewhere = 0.0
        """When the work on other streams ends."""
        self.to_wait = 0.0
        """What the host takes to wait, even for nothing."""

    def enqueue(self, on_host: float, on_device: float) -> None:
        self.host += on_host
        self.device = max(self.device, self.host) + on_device

    def sleep(self, cycles: int) -> None:
        self.gates.append(cycles / HERTZ)
        self.enqueue(5e-6, cycles / HERTZ)

    def synchronize(self) -> None:
        self.host = max(self.host, self.device, self.elsewhere) + self.to_wait

    def event(self, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    """When the device comes to it."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.at = machine, 0.0

    def record(self) -> None:
        self.machine.enqueue(1e-6, 0.0)
        self.at = self.machine.device

    def synchronize(self) -> None:
        self.machine.host = max(self.machine.host, self.at)

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(torch.cuda, "_sleep", machine.sleep)
    monkeypatch.setattr(torch.cuda, "synchronize", machine.synchronize)
    monkeypatch.setattr(torch.cuda, "Event", machine.event)
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(perf_counter=lambda: machine.host))
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    return machine


def sampled(
    machine: Machine, on_host: Iterator[float], samples: int = 40, on_device: float = ON_DEVICE
) -> tuple[CudaEventClock, list[float]]:
    """So many samples after ten of warm-up; each of them has the host take its next time."""
    clock = CudaEventClock(torch.device("cpu"))

    def sample() -> float:
        took = next(on_host)
        return clock.time(lambda: machine.enqueue(took, on_device), STEPS) / STEPS

    for _ in range(10):
        sample()
    clock.begin()
    return clock, [sample() for _ in range(samples)]


@pytest.mark.parametrize("to_wait", [0.0, 20e-6, 300e-6])
def test_work_that_nothing_waits_for_is_seen_whatever_the_host_takes_to_wait(machine: Machine, to_wait: float) -> None:
    machine.to_wait = to_wait
    clock, on_device = CudaEventClock(torch.device("cpu")), 10e-3

    def alone() -> None:
        machine.enqueue(1e-6, on_device)

    def beside() -> None:
        alone()
        machine.elsewhere = machine.device + 2e-3

    assert clock.time(alone, 1) == pytest.approx(on_device, abs=1e-5)
    assert clock.left == pytest.approx(to_wait if to_wait < LEAST_LEFT_SECONDS else 0.0, abs=1e-9)
    assert clock.time(beside, 1) == pytest.approx(on_device, abs=1e-5)
    assert clock.left == pytest.approx(2e-3, abs=1e-5)


def test_what_the_host_takes_is_no_part_of_the_time(machine: Machine) -> None:
    clock, seconds = sampled(machine, cycle([ON_HOST]))
    assert seconds == pytest.approx([ON_DEVICE] * len(seconds))
    assert not clock.host_bound


def test_the_gate_is_not_much_longer_than_the_host_needs(machine: Machine) -> None:
    sampled(machine, cycle([ON_HOST]))
    assert STEPS * ON_HOST < machine.gates[-1] < 1.4 * STEPS * ON_HOST


def test_a_step_that_waits_for_the_device_is_timed_without_long_gates(machine: Machine) -> None:
    clock, on_device = CudaEventClock(torch.device("cpu")), 5e-3

    def step() -> None:
        machine.enqueue(ON_HOST, on_device)
        machine.synchronize()

    seconds = [clock.time(step, 1) for _ in range(10)]
    assert seconds == pytest.approx([on_device] * len(seconds), abs=2 * ON_HOST)
    assert sum(gate < 2 * MIN_SECONDS for gate in machine.gates[3:]) >= 5
    assert max(machine.gates[3:]) < 1.2 * LOOK_MARGIN * on_device
    assert clock.waits


@pytest.mark.parametrize(
    ("on_host", "on_device"), [(3e-3, 0.5e-3), (0.25e-3, 0.02e-3), (0.1e-3, 0.02e-3), (0.05e-3, 0.01e-3)]
)
def test_a_step_whose_first_ten_calls_wait_has_the_devices_time_later(
    machine: Machine, on_host: float, on_device: float
) -> None:
    """As those of DistributedDataParallel, whose many launches take the host longer than the device."""
    clock, calls = CudaEventClock(torch.device("cpu")), count(1)

    def step() -> None:
        machine.enqueue(on_host, on_device)
        if next(calls) <= 10:
            machine.synchronize()

    for _ in range(20):
        clock.time(step, 3)
    clock.begin()
    seconds = [clock.time(step, 3) / 3 for _ in range(10)]
    assert seconds == pytest.approx([on_device] * len(seconds))
    assert not clock.waits
    assert not clock.host_bound


def test_a_host_that_is_slow_every_other_time_is_no_part_of_it_either(machine: Machine) -> None:
    clock, seconds = sampled(machine, cycle([ON_HOST, 2 * ON_HOST]))
    assert seconds == pytest.approx([ON_DEVICE] * len(seconds))
    assert not clock.host_bound


def test_a_host_that_takes_longer_than_a_gate_may_last_is_told(machine: Machine) -> None:
    clock, seconds = sampled(machine, cycle([1e-3]))
    assert min(seconds) > 10 * ON_DEVICE
    assert clock.host_bound


@pytest.mark.parametrize(("on_device", "bound"), [(0.54e-3, True), (0.58e-3, False), (5e-3, False)])
def test_a_device_that_has_much_left_to_do_then_has_its_own_time(
    machine: Machine, on_device: float, bound: bool
) -> None:
    # The gate opens after 50 ms and the host is done after 100: 4 of 54 ms are left then, 8 of 58, 450 of 500.
    clock, _ = sampled(machine, cycle([1e-3]), on_device=on_device)
    assert clock.host_bound is bound


def test_a_host_that_is_late_in_most_samples_is_told(machine: Machine) -> None:
    late = (1e-3 if number % 3 else ON_HOST for number in count())
    clock, _ = sampled(machine, late)
    assert clock.host_bound


def test_a_host_that_is_late_now_and_then_is_not(machine: Machine) -> None:
    late = (1e-3 if number % 3 == 0 else ON_HOST for number in count())
    clock, seconds = sampled(machine, late)
    assert sorted(seconds)[len(seconds) // 2] == pytest.approx(ON_DEVICE)
    assert not clock.host_bound


def test_what_was_late_in_the_warm_up_counts_no_more(machine: Machine) -> None:
    clock, _ = sampled(machine, cycle([1e-3]))
    assert clock.host_bound
    clock.begin()
    assert not clock.host_bound


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_wait_for_one_another_before_the_time_begins(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    waited: list[float] = []

    def all_reduce(token: torch.Tensor) -> None:
        machine.enqueue(5e-6, 1e-3)  # the others are late by as much
        waited.append(machine.device)

    monkeypatch.setattr(dist, "get_world_size", lambda: world_size)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    _, seconds = sampled(machine, cycle([ON_HOST]))
    assert seconds == pytest.approx([ON_DEVICE] * len(seconds))
    assert len(waited) == (50 if world_size > 1 else 0)


def test_a_cold_sample_finds_the_cache_overwritten(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = torch.full((20,), 7, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=10))
    monkeypatch.setattr(torch, "empty", lambda nbytes, **kwargs: cache[:nbytes])
    clock = CudaEventClock(torch.device("cpu"), cold=True)
    found: list[list[int]] = []
    clock.time(lambda: found.append(cache.tolist()), 1)
    assert found == [[0] * 20]
    assert clock.name == "cuda_event+cold"
