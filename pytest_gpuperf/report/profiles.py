"""Profiles: how they travel with a test's report, and what the summary says of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import pytest

from pytest_gpuperf.baselines.plain import plain, read
from pytest_gpuperf.report.table import Line
from pytest_gpuperf.report.units import format_count, format_percent, format_value
from pytest_gpuperf.traces.profile import Profile

PROFILES_PROPERTY = "gpuperf_profiles"
"""Name of the report's user property that carries the profiles of a test as JSON: a list of ``Profile``."""

VIEWER = "https://ui.perfetto.dev"


def profile_properties(profiles: Sequence[Profile]) -> list[tuple[str, str]]:
    """Return the user properties of a test that was profiled."""
    return [(PROFILES_PROPERTY, json.dumps(plain(list(profiles))))] if profiles else []


def profiles_of(report: pytest.TestReport) -> list[Profile]:
    """Return the profiles that a report carries."""
    carried = [value for name, value in report.user_properties if name == PROFILES_PROPERTY]
    return [read(Profile, data, PROFILES_PROPERTY) for value in carried for data in json.loads(str(value))]


def profile_lines(profiles: Sequence[Profile]) -> list[Line]:
    """Return the summary's lines: what was exposed in each overlap, where the traces are, and how to open one."""
    written = [profile for profile in profiles if profile.file]
    lines = [
        _overlap_line(profile, profile.overlap_exposed) for profile in written if profile.overlap_exposed is not None
    ]
    if written:
        folders = sorted({os.path.dirname(profile.file) or "." for profile in written})
        lines.append(Line(f"{format_count(len(written), 'trace')} in {', '.join(folders)}: open one at {VIEWER}"))
    return lines


def _overlap_line(profile: Profile, exposed: float) -> Line:
    what = f"profile: {profile.test}:"
    rank = profile.worst
    figure = f"{format_percent(exposed)} by perf.overlap"
    if rank is None:
        return Line(f"{what} no communication in the trace; exposed {figure}")
    return Line(
        f"{what} {format_value(rank.exposed, 's')} of {format_value(rank.communication, 's')} communication exposed in "
        f"the trace ({format_percent(rank.exposed / rank.communication)}, rank {rank.rank}); {figure}"
    )
