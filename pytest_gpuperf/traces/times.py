"""How long each rank computes, communicates, and communicates while it computes nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_gpuperf.traces.events import GLOO, RankEvents, Slice, Step, outermost
from pytest_gpuperf.traces.profile import RankTimes
from pytest_gpuperf.traces.spans import difference, length, union

ISSUES = ("c10d::", "_c10d_functional::")
"""How the names of operators begin that issue a collective or wait for one, and compute nothing."""


def rank_times(events: RankEvents) -> RankTimes:
    """Return the medians over the steps of one rank.

    Raises:
        ValueError: the trace has no step, or of a GPU's work nothing.
    """
    if events.device != "cpu" and not any(one.on_device for one in events.slices):
        raise ValueError(
            f"the trace of rank {events.rank} has no event of {events.device}: torch.profiler could not use CUPTI; end "
            "other profilers of this GPU, and see what the rank printed"
        )
    found = [_of_step(step) for step in events.steps]
    if not found:
        raise ValueError(f"the trace of rank {events.rank} has no step of its program")
    step, compute, communication, exposed = (statistics.median(values) for values in zip(*found, strict=True))
    return RankTimes(events.rank, events.device, step, compute, communication, exposed)


def computes_on_host(step: Sequence[Slice]) -> bool:
    """Whether the host does the step's work: no GPU does any of it."""
    return not any(one.on_device for one in step)


def is_compute(one: Slice, *, on_host: bool) -> bool:
    """Whether an event computes: a kernel, or without a GPU an operator that issues no collective."""
    if not on_host:
        return one.on_device and one.kind == "compute"
    return one.category == "cpu_op" and not one.name.startswith(ISSUES)


def _of_step(step: Step) -> tuple[float, float, float, float]:
    """Seconds of the step, of its compute, of its communication, and of what of that is exposed."""
    on_host = computes_on_host(step.slices)
    works = [one for one in step.slices if on_host or one.on_device]
    communicates = [one for one in works if one.kind == "communication"]
    # gloo's threads copy tensors within a collective: that is a part of it.
    inside = {
        track: union((one.start, one.end) for one in communicates if one.track == track)
        for track in {one.track for one in communicates if one.name.startswith(GLOO)}
    }
    busy = union((one.start, one.end) for one in communicates)
    compute = union(
        (one.start, one.end)
        for one in _outermost(works, on_host)
        if is_compute(one, on_host=on_host) and not _covers(inside.get(one.track, ()), one)
    )
    start = step.start if on_host else min((one.start for one in works), default=step.start)
    end = max((one.end for one in works), default=start)
    exposed = length(difference(busy, compute))
    return (end - start) / 1e6, length(compute) / 1e6, length(busy) / 1e6, exposed / 1e6


def _outermost(works: Sequence[Slice], on_host: bool) -> list[Slice]:
    """On the host, operators that no other operator calls: what an operator that issues a collective calls is its."""
    if not on_host:
        return list(works)
    tracks: dict[tuple[str, int], list[Slice]] = {}
    for one in works:
        if one.category == "cpu_op":
            tracks.setdefault(one.track, []).append(one)
    return [one for track in tracks.values() for one in outermost(track)]


def _covers(spans: Sequence[tuple[float, float]], one: Slice) -> bool:
    return any(start <= one.start and one.end <= end for start, end in spans)
