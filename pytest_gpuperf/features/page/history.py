"""What a file of baselines said in earlier commits, from git."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pytest_gpuperf.baselines.schema import BaselineError, Baselines
from pytest_gpuperf.git import GitFailed, run_git, show

COMMITS = 50  # each is a file to read: half a second together, for a file of 200 kB
_LOG = (f"--max-count={COMMITS}", "--format=%H %cI")
TIMEOUT = 20.0  # seconds; a page is worth no longer wait


@dataclass(frozen=True, slots=True)
class Recorded:
    """A figure's centre as one commit recorded it."""

    commit: str
    at: str
    """ISO 8601: when it was committed."""
    center: float


History: TypeAlias = Mapping[tuple[str, str], Sequence[Recorded]]
"""By test and metric, the oldest first; a commit that left the centre as it was is left out."""


def read_history(path: Path, hardware_key: str) -> History:
    """Return how the centres in a file of baselines changed over its commits.

    Args:
        path: the file; it need not exist now.
        hardware_key: of what it holds.

    Returns:
        Nothing without git, or if the file was never committed. A commit whose file cannot be read is left out.
    """
    found: dict[tuple[str, str], list[Recorded]] = {}
    for commit, at in reversed(_list_commits(path)):
        try:
            text = show(run_git(path.parent, "show", f"{commit}:./{path.name}", timeout=TIMEOUT))
            stored = Baselines.from_json(json.loads(text), path, hardware_key)
        except (GitFailed, BaselineError, ValueError, RecursionError):
            continue
        for test, entry in stored.tests.items():
            for name, metric in entry.metrics.items():
                centers = found.setdefault((test, name), [])
                if not centers or centers[-1].center != metric.center:
                    centers.append(Recorded(commit, at, metric.center))
    return found


def _list_commits(path: Path) -> list[tuple[str, str]]:
    """Commits that changed the file, with their times, the newest first."""
    try:
        log = run_git(path.parent, "log", *_LOG, "--", path.name, timeout=TIMEOUT)
    except GitFailed:
        return []
    return [(commit, at) for commit, _, at in (line.partition(" ") for line in log.splitlines())]
