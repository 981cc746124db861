"""The exit status of a run, decided in one place."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass(frozen=True, slots=True)
class Ending:
    """What a run came to, beside the outcomes of its tests."""

    slower: bool = False
    """Whether the environment is slower, which fails no test, and that shall fail the run."""
    undecided: bool = False
    """Whether a metric is undecided, which fails no test, and that shall fail the run."""
    unraced: bool = False
    """Whether a race that the user asked for could not be run, which fails no test."""
    results_problem: bool = False
    """Whether the file of results, or the page, could not be written."""


def exit_status(status: int, ending: Ending) -> int:
    """The exit status of a run, from that which its tests gave it.

    A failure stays what it is.
    """
    if status not in PASSED:
        return status
    as_a_whole = (ending.slower or ending.undecided or ending.unraced) and status == pytest.ExitCode.OK
    return pytest.ExitCode.TESTS_FAILED if ending.results_problem or as_a_whole else status


def is_interrupted(session: pytest.Session) -> bool:
    """Whether a run ended before all its tests had run."""
    ended = session.exitstatus in (*PASSED, pytest.ExitCode.TESTS_FAILED)
    return not ended or bool(session.shouldfail or session.shouldstop)
