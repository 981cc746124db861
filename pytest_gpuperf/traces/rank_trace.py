"""What a rank sends back of its profiled steps."""

from __future__ import annotations

from dataclasses import dataclass

STEP = "gpuperf step"
"""The name of each profiled step begins so, in traces and for nsys."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A collective as a rank issued it; gloo's events name no process group, so c10d's flight recorder does."""

    name: str
    """The name of its event: ``gloo:all_reduce``."""
    group: str
    """The process group's name, the same on all its ranks."""
    sequence: int
    """Its place among the collectives of the group."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The trace of one rank, as torch.profiler wrote it."""

    rank: int
    device: str
    """``cuda:0`` or ``cpu``."""
    started: int
    """Nanoseconds of the wall clock, before the first event."""
    chrome: bytes
    """Chrome's trace format in JSON, compressed by gzip; empty if another profiler had the device."""
    issued: tuple[Issued, ...] = ()
    """With gloo, the collectives in the order of issue."""
