"""Events of one rank's trace, as torch.profiler (Kineto) names and marks them.

Kineto's categories and the keys of ``args`` are those of its ``output_json.cpp``; the format is Chrome's Trace Event
Format: times in microseconds, ``X`` a slice, ``s`` and ``f`` the two ends of an arrow.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_gpuperf.traces.profile import Kind
from pytest_gpuperf.traces.rank_trace import STEP, RankTrace

DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""Categories of work on a GPU."""
ON_STREAM = DEVICE | {"gpu_user_annotation"}
"""Categories of events whose thread is a CUDA stream."""
RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
"""Categories of calls by which the host gives work to a GPU."""
GLOO = "gloo:"

_COMMUNICATES = re.compile(r"nccl|nvshmem|multimem|symm_mem|\bdeep_ep\b", re.IGNORECASE)
_THREAD = re.compile(r"thread \d+ \((.*)\)")


@dataclass(frozen=True, slots=True)
class Slice:
    """An event with a beginning and an end. Times are microseconds since the origin that all ranks share."""

    name: str
    category: str
    track: tuple[str, int]
    """``stream`` or ``thread``, with its number."""
    start: float
    duration: float
    args: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def end(self) -> float:
        """The end in microseconds."""
        return self.start + self.duration

    @property
    def on_device(self) -> bool:
        """Whether a GPU does this."""
        return self.category in DEVICE

    @property
    def kind(self) -> Kind:
        """What it is on its track: on a GPU by category and name, on a host by name."""
        if self.category in ("gpu_memcpy", "gpu_memset"):
            return "communication" if "PtoP" in self.name else "copy"
        if self.category == "kernel":
            return "communication" if "Collective name" in self.args or _COMMUNICATES.search(self.name) else "compute"
        return "communication" if self.name.startswith(GLOO) else "host"


@dataclass(frozen=True, slots=True)
class Arrow:
    """One end of an arrow between two slices, for example from a launch to its kernel."""

    event: Mapping[str, Any]
    track: tuple[str, int]
    at: float
    """Microseconds since the origin."""


@dataclass(frozen=True, slots=True)
class Step:
    """The slices of one profiled step on one rank."""

    start: float
    """When the step began on the host, in microseconds since the origin."""
    end: float
    """When its function had returned."""
    slices: tuple[Slice, ...]
    """The host's slices that began within the step, and the GPU's slices that the host launched within it."""


@dataclass(frozen=True, slots=True)
class RankEvents:
    """The events of one rank."""

    rank: int
    device: str
    slices: tuple[Slice, ...]
    """Sorted by start; of those that start together, the longest first."""
    arrows: tuple[Arrow, ...]
    threads: Mapping[int, str]
    """Names of the host's threads."""

    @property
    def steps(self) -> list[Step]:
        """The profiled steps in their order."""
        marks = [one for one in self.slices if one.category == "user_annotation" and one.name.startswith(STEP)]
        return [Step(mark.start, mark.end, tuple(_list_within(self.slices, mark))) for mark in marks]


def read(trace: RankTrace, origin: int) -> RankEvents:
    """Read the trace of one rank.

    Args:
        trace: the rank's.
        origin: nanoseconds of the wall clock from which times are counted.

    Raises:
        ValueError: the trace is not what torch.profiler writes.
    """
    try:
        data = json.loads(gzip.decompress(trace.chrome))
        shift = (int(data.get("baseTimeNanoseconds", 0)) - origin) / 1e3
        events: list[dict[str, Any]] = data["traceEvents"]
        threads = {
            event["tid"]: _parse_thread_name(str(event["args"]["name"]))
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name"
        }
        # Kineto has a track of its own for the span of the trace: its process is a word.
        ours = [event for event in events if event["ph"] in ("X", "s", "f") and isinstance(event["pid"], int)]
        slices = [_make_slice(event, shift) for event in ours if event["ph"] == "X" and event.get("cat") != "Trace"]
        streams = {(event["pid"], event["tid"]) for event in ours if event.get("cat") in ON_STREAM}
        arrows = [
            Arrow(event, _track(event, (event["pid"], event["tid"]) in streams), event["ts"] + shift)
            for event in ours
            if event["ph"] in ("s", "f")
        ]
    except (AttributeError, EOFError, KeyError, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"the trace of rank {trace.rank} cannot be read ({type(error).__name__}: {error}): expected the JSON that "
            "torch.profiler writes; try another version of torch"
        ) from error
    slices.sort(key=lambda one: (one.start, -one.duration))
    return RankEvents(trace.rank, trace.device, tuple(slices), tuple(arrows), threads)


def list_outermost(slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices of one track that lie in no other one of it, in the order of their start.

    Args:
        slices: sorted by start; of those that start together, the longest first.
    """
    found: list[Slice] = []
    for one in slices:
        if not found or one.end > found[-1].end:
            found.append(one)
    return found


def _make_slice(event: Mapping[str, Any], shift: float) -> Slice:
    category = event.get("cat", "")
    return Slice(
        str(event["name"]),
        category,
        _track(event, category in ON_STREAM),
        event["ts"] + shift,
        float(event.get("dur", 0.0)),
        event.get("args") or {},
    )


def _track(event: Mapping[str, Any], on_stream: bool) -> tuple[str, int]:
    return "stream" if on_stream else "thread", int(event["tid"])


def _parse_thread_name(text: str) -> str:
    found = _THREAD.fullmatch(text)
    return found[1] if found else text


def _list_within(slices: Sequence[Slice], mark: Slice) -> list[Slice]:
    hosts = [
        one
        for one in slices
        if one.category not in ON_STREAM and mark.start <= one.start < mark.end and one is not mark
    ]
    launched = {one.args.get("correlation") for one in hosts if one.category in RUNTIME} - {None}
    return hosts + [one for one in slices if one.on_device and one.args.get("correlation") in launched]
