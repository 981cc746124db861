"""Clocks that time work on one rank, after all ranks were released together. Run in rank processes."""

from __future__ import annotations

import time
from typing import Protocol

import torch
import torch.distributed as dist

from pytest_gpuperf.timing.stepping import Step

# The gate holds the device until the host has enqueued everything that is to be timed. It spins for a
# number of clock cycles; no GPU that runs torch 2.10 exceeds 3 GHz, so this errs towards a longer gate.
CYCLES_PER_SECOND = 3e9
GATE_MARGIN = 1.5  # the host may be slower this time than it was in the warm-up
MIN_GATE_SECONDS = 200e-6
MAX_GATE_SECONDS = 50e-3  # a step that takes the host longer than this waits for the device by itself


class Clock(Protocol):
    """Times ``steps`` calls of a step."""

    name: str

    def time(self, step: Step, steps: int) -> float:
        """Seconds from the release of all ranks to the end of this rank's work."""
        ...


class HostClock:
    """Wall time of the calling process; for CPU ranks, whose work ends when the call returns."""

    name = "host"

    def time(self, step: Step, steps: int) -> float:
        """Seconds of wall time after a barrier."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return time.perf_counter() - start


class CudaEventClock:
    """Time between two CUDA events on the stream that consumes the result.

    Each sample is: a gate that spins on the device while the host enqueues the rest; a collective of one
    element, which no rank leaves before all have come to it; the first event; the steps; the second event.
    So neither the host's launch cost nor the ranks' skew is part of the time.
    """

    name = "cuda_event"

    def __init__(self, device: torch.device) -> None:
        self._token = torch.zeros(1, device=device)
        self._enqueue_seconds = MAX_GATE_SECONDS  # unknown before the first sample

    def time(self, step: Step, steps: int) -> float:
        """Seconds of device time between the release of all ranks and the end of the last step."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began = time.perf_counter()
        gate = min(MAX_GATE_SECONDS, max(MIN_GATE_SECONDS, GATE_MARGIN * self._enqueue_seconds))
        torch.cuda._sleep(int(gate * CYCLES_PER_SECOND))
        if dist.get_world_size() > 1:
            dist.all_reduce(self._token)
        start.record()
        for _ in range(steps):
            step()
        end.record()
        self._enqueue_seconds = time.perf_counter() - began
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def clock_for(device: torch.device) -> Clock:
    """The clock that tells the truth about work on this device."""
    return CudaEventClock(device) if device.type == "cuda" else HostClock()


def slowest(seconds: float, device: torch.device) -> float:
    """The largest of all ranks' values, known to all of them."""
    value = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)
