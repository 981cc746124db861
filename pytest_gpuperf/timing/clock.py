"""Clocks that time work on one rank, after all ranks were released together. Run in rank processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist

from pytest_gpuperf.timing.gate import Gate
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import Step
from pytest_gpuperf.torch_internals import hold_stream

Reset: TypeAlias = Callable[[], object]

FLUSHED_CACHES = 2  # L2 caches are no perfect LRU: one of their size would leave lines behind

# What is left of a step's work once something else is over. A synchronize of an idle device takes 10 to 20 us.
LEAST_LEFT_SECONDS = 200e-6
LEFT_SHARE = 0.1
IDLE_LOOKS = 3  # at a device that has nothing to do

LATE_SHARE = 0.5  # of the samples; a step that the host cannot keep up with is late in nearly all of them


class Clock(Protocol):
    """Times ``steps`` calls of a step."""

    name: str

    @property
    def late(self) -> bool:
        """Whether the last sample waited for the host: the device had nothing to do until the host launched more."""
        ...

    @property
    def left(self) -> float:
        """Seconds that the device went on after the last sample had ended: work that the clock does not see."""
        ...

    @property
    def host_bound(self) -> bool:
        """Whether the time of more than half of the samples is the host's, which launched the work."""
        ...

    @property
    def waits(self) -> bool:
        """Whether the host waits for the device within the step, so that it cannot launch ahead."""
        ...

    def begin(self) -> None:
        """The samples from now on count."""
        ...

    def time(self, step: Step, steps: int, reset: Reset | None = None) -> float:
        """Seconds from the release of all ranks to the end of this rank's work.

        Args:
            step: what is timed.
            steps: how many, one after the other.
            reset: puts the step's inputs back first, untimed.
        """
        ...


class HostClock:
    """Wall time of the calling process; for CPU ranks, whose work ends when the call returns."""

    name = "host"
    late = host_bound = waits = False
    """There is no device beside the host."""
    left = 0.0
    """Nothing is left when the calls have returned."""

    def begin(self) -> None:
        """Keeps nothing of samples."""

    def time(self, step: Step, steps: int, reset: Reset | None = None) -> float:
        """Seconds of wall time after a barrier."""
        if reset is not None:
            reset()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return time.perf_counter() - start


class CudaEventClock:
    """Time between two CUDA events on the stream that consumes the result.

    Each sample is: a gate that spins on the device while the host enqueues the rest; a collective of one
    element, which no rank leaves before all have come to it; the first event; the steps; the second event.
    So neither the host's launch cost nor the ranks' skew is part of the time. Where the gate opens before the host has
    enqueued everything, since that takes longer than a gate may last or fills the device's queue, the launch cost is.
    """

    name = "cuda_event"

    def __init__(self, device: torch.device, *, cold: bool = False) -> None:
        """Makes the clock of a GPU.

        Args:
            device: the GPU.
            cold: whether its L2 cache is overwritten before each sample.
        """
        self._token = torch.zeros(1, device=device)
        self._flush: torch.Tensor | None = None
        if cold:
            nbytes = FLUSHED_CACHES * torch.cuda.get_device_properties(device).L2_cache_size
            self._flush = torch.empty(nbytes, dtype=torch.uint8, device=device)
            self.name = "cuda_event+cold"
        self._gate = Gate()
        self.late = False
        self.left = 0.0
        self._samples = self._late = 0

    @property
    def host_bound(self) -> bool:
        """Whether the device, in many samples, was done as soon as the host had launched the last of their work.

        That is so if the gate opened too early, and what was left to do then was next to nothing. Up to half of such
        samples do not count: see ``list_punctual``.
        """
        return self._late > LATE_SHARE * self._samples

    @property
    def waits(self) -> bool:
        """Whether the host was done the same time after each gate, however long that was."""
        return self._gate.waits

    def begin(self) -> None:
        """Forgets the samples of the warm-up."""
        self._samples = self._late = 0

    def time(self, step: Step, steps: int, reset: Reset | None = None) -> float:
        """Seconds of device time between the release of all ranks and the end of the last step."""
        shut, opened, start, end = (torch.cuda.Event(enable_timing=True) for _ in range(4))
        if reset is not None:
            reset()
        torch.cuda.synchronize()
        began = time.perf_counter()
        cycles = self._gate.compute_cycles(steps)
        shut.record()
        hold_stream(cycles)
        opened.record()
        if self._flush is not None:
            self._flush.zero_()
        if dist.get_world_size() > 1:
            dist.all_reduce(self._token)
        start.record()
        ready = time.perf_counter()
        for _ in range(steps):
            step()
        end.record()
        launched = time.perf_counter()
        end.synchronize()
        seconds = float(start.elapsed_time(end)) / 1e3
        waited = time.perf_counter() - launched
        self.left = _measure_left()
        held = shut.elapsed_time(opened) / 1e3
        self._gate.note_sample(steps, cycles=cycles, held=held, before=ready - began, seconds=launched - ready)
        self._samples += 1
        self.late = launched - began > held and waited < max(LEAST_LEFT_SECONDS, LEFT_SHARE * seconds)
        self._late += self.late
        return seconds


def _measure_left() -> float:
    """Seconds until all streams have ended, beyond what the host takes to wait for nothing."""
    left = _synchronize()
    if left > LEAST_LEFT_SECONDS:  # on a virtual machine to wait for nothing can take as long
        left -= min(_synchronize() for _ in range(IDLE_LOOKS))
    return max(0.0, left)


def _synchronize() -> float:
    """Seconds that the host waits for the device."""
    start = time.perf_counter()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def choose_clock(device: torch.device, sampling: Sampling) -> Clock:
    """The clock that tells the truth about work on this device; only GPUs have a cache that it can empty."""
    return CudaEventClock(device, cold=sampling.cold) if device.type == "cuda" else HostClock()


def list_punctual(late: Sequence[float]) -> list[int]:
    """Return the places of the samples that count: those that no rank's host was late for.

    A thread beside the program, such as NCCL's watchdog, can hold up a host for 15 ms, once in ten samples of short
    steps. If more than half are late, the step itself takes the host that long, and all of them count.

    Args:
        late: for each sample, or each block of them, above 0 if a rank's host was late.
    """
    kept = [place for place, flag in enumerate(late) if not flag]
    return kept if len(late) - len(kept) <= LATE_SHARE * len(late) else list(range(len(late)))


def reduce_to_slowest(seconds: Sequence[float], device: torch.device) -> list[float]:
    """The largest of all ranks' values at each place, known to all of them."""
    values = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    found: list[float] = values.tolist()
    return found
