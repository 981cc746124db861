"""The timeline of one step as lanes of intervals, few enough for a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pytest_gpuperf.traces.events import RankEvents, Slice, Step, list_outermost
from pytest_gpuperf.traces.profile import KINDS, Interval, Kind, Lane
from pytest_gpuperf.traces.times import Work

MOST = 2000
"""Intervals of all lanes of a test."""
NAME_CHARACTERS = 60
"""A kernel's name can have hundreds: template arguments."""

_HOST = frozenset({"cpu_op", "cuda_runtime", "cuda_driver"})
_FINEST = 1e-7  # seconds, to which intervals are merged first


def make_lanes(events: RankEvents) -> list[Lane]:
    """Return the lanes of the middle step of one rank, every event in an interval of its own."""
    steps = events.steps
    if not steps:
        return []
    step = steps[len(steps) // 2]
    work = Work.of(step)
    host = () if work.on_host else tuple(one for one in step.slices if one.category in _HOST)
    kinds: dict[Kind, tuple[Slice, ...]] = {
        "compute": work.compute,
        "communication": work.communication,
        "copy": work.other,
        "host": host,
    }
    return [
        Lane(events.rank, kind, track_name(track, events), _make_intervals(slices, step))
        for kind in KINDS
        for track, slices in _group_by_track(kinds[kind])
    ]


def track_name(track: tuple[str, int], events: RankEvents) -> str:
    """Return how people call a stream or a thread."""
    where, number = track
    if where == "stream":
        return f"stream {number}"
    name = events.threads.get(number, "")
    return f"thread {number} ({name})" if name else f"thread {number}"


def merge_lanes(lanes: Sequence[Lane], most: int = MOST) -> list[Lane]:
    """Return the lanes with at most so many intervals together, or one in each lane if there are more lanes.

    Neighbours in a lane are merged if both, and the gap between them, are shorter than a threshold. The threshold is
    the same in all lanes, and doubles until the intervals are few enough.
    """
    threshold = _FINEST
    found = list(lanes)
    while sum(len(lane.intervals) for lane in found) > max(most, len(lanes)):
        found = [_coarsen_lane(lane, threshold) for lane in lanes]
        threshold *= 2
    return found


def _group_by_track(slices: Iterable[Slice]) -> list[tuple[tuple[str, int], list[Slice]]]:
    tracks: dict[tuple[str, int], list[Slice]] = {}
    for one in sorted(slices, key=lambda one: (one.start, -one.duration)):
        tracks.setdefault(one.track, []).append(one)
    return [(track, list_outermost(tracks[track])) for track in sorted(tracks)]


def _make_intervals(slices: Sequence[Slice], step: Step) -> tuple[Interval, ...]:
    found: list[Interval] = []
    end = -math.inf
    for one in slices:
        start, end = max(one.start, end), one.end  # a kernel may begin while the one before it drains
        found.append((round((start - step.start) / 1e6, 9), round((end - start) / 1e6, 9), _shorten_name(one.name)))
    return tuple(found)


def _shorten_name(name: str) -> str:
    name = name.removeprefix("void ")
    return name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1]}…"


def _coarsen_lane(lane: Lane, threshold: float) -> Lane:
    found: list[list[Interval]] = []
    for interval in lane.intervals:
        if found and _fits(found[-1], interval, threshold):
            found[-1].append(interval)
        else:
            found.append([interval])
    return Lane(lane.rank, lane.kind, lane.track, tuple(map(_join, found)))


def _fits(together: Sequence[Interval], interval: Interval, threshold: float) -> bool:
    """Whether an interval joins those before it: its gap and its length, and theirs, are below the threshold."""
    last = together[-1]
    gap = interval[0] - (last[0] + last[1])
    return gap < threshold and interval[1] < threshold and last[1] < threshold


def _join(together: Sequence[Interval]) -> Interval:
    if len(together) == 1:
        return together[0]
    longest = max(together, key=lambda interval: interval[1])
    start, end = together[0][0], together[-1][0] + together[-1][1]
    return start, round(end - start, 9), f"{longest[2]} (+ {len(together) - 1} more)"
