"""The profile of one measured program: what reports and results files hold of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["compute", "communication", "copy", "host"]
"""What a lane shows: kernels that compute, kernels of collectives, copies and fills of memory, or the host's work."""

KINDS: tuple[Kind, ...] = ("compute", "communication", "copy", "host")
"""In the order in which a page shows them."""

_LONGEST = 1e6  # seconds: no step takes days

Interval: TypeAlias = tuple[float, float, str]
"""Seconds since the step began on this rank, duration in seconds, and name.

A name that ends in ``(+ N more)`` stands for N + 1 events that were too short to be kept apart. Such an interval covers
the gaps between them.
"""


@dataclass(frozen=True, slots=True)
class Lane:
    """What happened on one CUDA stream, or on one thread of the host, in the step that the timeline shows."""

    rank: int
    kind: Kind
    track: str
    """The stream or the thread, as the trace names it."""
    intervals: tuple[Interval, ...]
    """Sorted by start; they do not overlap."""

    def __post_init__(self) -> None:
        """Refuses times that no step has, and with which intervals could not be merged or drawn."""
        for start, duration, _ in self.intervals:
            if max(abs(start), abs(duration)) > _LONGEST:
                raise ValueError(f"got an interval of {duration!r} s at {start!r} s, expected at most {_LONGEST:g} s")


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Times of one rank in seconds: each is the median over the profiled steps."""

    rank: int
    device: str
    """``cuda:0`` or ``cpu``."""
    step: float
    """From the start of the first event on the GPU, without one of the step itself, to the end of the last event."""
    compute: float
    """The time in which at least one event computes."""
    communication: float
    """The time in which at least one collective, send or receive runs."""
    exposed: float
    """The time in which one of these runs and nothing computes."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A few steps of one measured program under torch.profiler, on all ranks."""

    test: str
    """The node id."""
    arm: str
    """Which program of the test: ``measure``, ``optimized``, ``together``, ``sweep-1MiB`` and so on."""
    file: str
    """The trace; empty if there is none."""
    problem: str = ""
    """Why there is no trace; empty if there is one."""
    steps: int = 0
    """How many steps the trace has; the timeline shows the middle one."""
    overlap_exposed: float | None = None
    """The share of the communication that ``perf.overlap`` found exposed; None for other programs."""
    ranks: tuple[RankTimes, ...] = ()
    lanes: tuple[Lane, ...] = ()
    """The timeline of the middle step: at most 2000 intervals of all lanes together."""

    @property
    def worst(self) -> RankTimes | None:
        """The rank with the most exposed communication; None if no rank communicated."""
        ranks = [rank for rank in self.ranks if rank.communication > 0]
        return max(ranks, key=lambda rank: rank.exposed, default=None)
