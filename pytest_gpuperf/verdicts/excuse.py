"""What a known regression makes of a verdict."""

import datetime
from dataclasses import replace

from pytest_gpuperf.baselines.schema import TestBaseline
from pytest_gpuperf.verdicts.judge import asked
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict


def excused(verdict: Verdict, entry: TestBaseline | None, today: datetime.date) -> Verdict:
    """Turns a regression that is known, and no worse than known, into one that passes until its day has passed.

    Args:
        verdict: What the judge said.
        entry: The test's baseline, which holds what is expected.
        today: The day that counts.
    """
    known = None if entry is None else entry.expected.get(verdict.metric_name)
    if known is None:
        return verdict
    covered = (
        verdict.outcome is Outcome.REGRESSED
        and known.holds(today)
        and known.covers(verdict.metric.value, verdict.metric.better, verdict.bound or 0.0)
    )
    # What the test asks for besides is not excused.
    return replace(
        verdict, expected=known, outcome=asked(verdict.metric) or Outcome.EXPECTED if covered else verdict.outcome
    )
