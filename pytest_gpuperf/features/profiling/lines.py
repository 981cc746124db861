"""What the summary says of profiles."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpuperf.baselines.plain import read
from pytest_gpuperf.report.shown import Shown
from pytest_gpuperf.report.table import Line
from pytest_gpuperf.report.units import format_count, format_percent, format_value
from pytest_gpuperf.traces.profile import Profile

VIEWER = "https://ui.perfetto.dev"


def describe_profiles(shown: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the summary's lines: what was exposed in each overlap, where the traces are, and how to open one.

    Args:
        shown: profiles as JSON has them.
    """
    profiles = [read(Profile, one, "profile") for one in shown]
    written = [profile for profile in profiles if profile.file]
    lines = [
        _describe_overlap(profile, profile.overlap_exposed)
        for profile in written
        if profile.overlap_exposed is not None
    ]
    if written:
        folders = sorted({os.path.dirname(profile.file) or "." for profile in written})
        lines.append(Line(f"{format_count(len(written), 'trace')} in {', '.join(folders)}: open one at {VIEWER}"))
    return lines


def _describe_overlap(profile: Profile, exposed: float) -> Line:
    what = f"profile: {profile.test}:"
    rank = profile.worst
    figure = f"{format_percent(exposed)} by perf.overlap"
    if rank is None:
        return Line(f"{what} no communication in the trace; exposed {figure}")
    return Line(
        f"{what} {format_value(rank.exposed, 's')} of {format_value(rank.communication, 's')} communication exposed in "
        f"the trace ({format_percent(rank.exposed / rank.communication)}, rank {rank.rank}); {figure}"
    )


PROFILES = Shown("profiles", Profile, describe_profiles)
"""The profiles of programs."""
