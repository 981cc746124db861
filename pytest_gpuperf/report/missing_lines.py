"""What is said of a run whose metrics have no record: how the first one is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.verdict import Verdict


def describe_missing(
    verdicts: Sequence[Verdict], record_all: Callable[[Collection[str]], str], *, on_github: bool
) -> list[str]:
    """Return one line for all metrics that failed since they have no record, or a stale one.

    Args:
        verdicts: Of the run.
        record_all: Makes the command that records the baselines of these tests.
        on_github: Whether a workflow of GitHub runs the tests.
    """
    missing = [
        one for one in verdicts if one.outcome is Outcome.MISSING and one.reason in (Reason.NO_RECORD, Reason.STALE)
    ]
    if not missing:
        return []
    tests = list(dict.fromkeys(one.test for one in missing))
    what = f"{format_count(len(missing), 'metric')} of {format_count(len(tests), 'test')}"
    by_hand = "start the workflow by hand with update-baselines, or " if on_github else ""
    return [f"no baseline, or a stale one, for {what}: to record them, {by_hand}run: {record_all(tests)}"]
