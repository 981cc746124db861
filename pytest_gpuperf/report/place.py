"""Where a test is, and the message of its failure, as pytest's report has them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Place:
    """The file and line of a test."""

    file: str
    """Relative to the rootdir."""
    line: int | None
    """1 and up; None if unknown."""


def find_place(report: pytest.TestReport) -> Place:
    """Returns where the test is; pytest counts lines from 0."""
    file, line, _ = report.location
    return Place(file, None if line is None else line + 1)


def extract_message(report: pytest.TestReport) -> str:
    """Returns the message of the exception that ended the phase, or the whole of what failed if there was none."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return format_failure(report) if crash is None else str(crash.message)


def format_failure(report: pytest.TestReport) -> str:
    """Returns what failed as pytest prints it, without the line that xdist puts above: which worker it was."""
    return str(report.longrepr).strip()
