"""The one metric of a test that a person asks for first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_gpuperf.report.change import compute_stored_change
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict

# What a person asks for first: how fast it is, how long it takes; a ratio other than a speedup says what it is of.
_BY_UNIT = ("B/s", "FLOP/s", "s", "x")


@dataclass(frozen=True, slots=True)
class TestFigures:
    """All metrics of one test, the one that matters first."""

    __test__ = False  # pytest would collect a class of this name

    test: str
    """Node id."""
    headline: Verdict
    others: tuple[Verdict, ...]
    """In the order in which the test handed them over."""

    @property
    def file(self) -> str:
        """The test's file."""
        return self.test.partition("::")[0]

    @property
    def name(self) -> str:
        """The test without its file."""
        return self.test.partition("::")[2] or self.test

    @property
    def outcome(self) -> Outcome:
        """The worst that one of its metrics came to."""
        return self.headline.outcome


def group_by_test(verdicts: Iterable[Verdict]) -> list[TestFigures]:
    """Return the tests of these verdicts, in the order in which they come first."""
    tests: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        tests.setdefault(verdict.test, []).append(verdict)
    return [_make_figures(test, of_test) for test, of_test in tests.items()]


def _make_figures(test: str, verdicts: Sequence[Verdict]) -> TestFigures:
    worst = min(verdict.outcome.severity for verdict in verdicts)
    candidates = [verdict for verdict in verdicts if verdict.outcome.severity == worst]
    headline = min(candidates, key=_rank_unasked)
    return TestFigures(test, headline, tuple(verdict for verdict in verdicts if verdict is not headline))


def _rank_unasked(verdict: Verdict) -> tuple[float, bool, bool, int]:
    """The lower, the sooner a person asks for it: the largest loss, a speedup, a share of a limit."""
    metric = verdict.metric
    loss = min(compute_stored_change(verdict) or 0.0, 0.0) if verdict.outcome.effect is not Outcome.SAME.effect else 0.0
    unit = _BY_UNIT.index(metric.unit) if metric.unit in _BY_UNIT else len(_BY_UNIT)
    return loss, verdict.metric_name != "speedup", metric.limit is None, unit
