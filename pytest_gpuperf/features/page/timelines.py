"""The timeline of a profiled step: for each rank a row of what computed, communicated, copied and launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.report.units import format_percent, format_value
from pytest_gpuperf.traces.lanes import merge_lanes
from pytest_gpuperf.traces.profile import Kind, Lane, Profile

WIDTH = 1000.0
LABEL = 190.0
ROW = 22.0
MOST = 15_000
"""Intervals of all timelines of a page: each takes some 100 bytes of it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One interval."""

    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """What one rank did on one stream or thread."""

    y: float
    label: str
    kind: Kind
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The middle step of one profiled program."""

    title: str
    summary: str
    file: str
    """The trace, for Perfetto."""
    rows: Sequence[Row]
    height: float
    ticks: Sequence[tuple[float, str]]
    """Places on the axis of time, and what they say."""
    ranks: Sequence[tuple[str, str, str, str, str]]
    """Rank, step, compute, communication and what of it was exposed."""


def make_timelines(profiles: Sequence[Profile]) -> list[Timeline]:
    """Return the timelines of profiles that have one, with few enough intervals for a page."""
    drawn = [profile for profile in profiles if any(lane.intervals for lane in profile.lanes)]
    most = MOST // max(1, len(drawn))
    return [_make_timeline(profile, merge_lanes(profile.lanes, most)) for profile in drawn]


def _make_timeline(profile: Profile, lanes: Sequence[Lane]) -> Timeline:
    rows = [lane for lane in sorted(lanes, key=lambda lane: lane.rank) if lane.intervals]
    end = max(start + duration for lane in rows for start, duration, _ in lane.intervals)
    scale = (WIDTH - LABEL) / end if end > 0 else 0.0
    return Timeline(
        f"{profile.test} {profile.arm}",
        _summarize_profile(profile),
        profile.file,
        [
            Row(
                number * ROW,
                f"rank {lane.rank} {lane.kind}",
                lane.kind,
                [
                    Bar(
                        round(LABEL + start * scale, 2),
                        # A bar that is too thin to be seen would hide that something happened.
                        max(round(duration * scale, 2), 0.5),
                        f"{name}: {format_value(duration, 's')} from {format_value(start, 's')} on",
                    )
                    for start, duration, name in lane.intervals
                ],
            )
            for number, lane in enumerate(rows)
        ],
        len(rows) * ROW,
        [
            (round(LABEL + end * scale * part / 4, 1), format_value(end * part / 4, "s") if part else "0")
            for part in range(5)
        ],
        [
            (
                f"{times.rank} ({times.device})",
                format_value(times.step, "s"),
                format_value(times.compute, "s"),
                format_value(times.communication, "s"),
                format_value(times.exposed, "s"),
            )
            for times in profile.ranks
        ],
    )


def _summarize_profile(profile: Profile) -> str:
    worst = profile.worst
    if worst is None:
        return "no rank communicated"
    share = format_percent(worst.exposed / worst.communication)
    found = (
        f"rank {worst.rank} has the most exposed communication: {format_value(worst.exposed, 's')} of "
        f"{format_value(worst.communication, 's')} ({share})"
    )
    if profile.overlap_exposed is None:
        return found
    return f"{found}; {format_percent(profile.overlap_exposed)} by perf.overlap"
