"""Suspects: perf tests that came out worse, whose reports wait until more launches have decided.

pytest reports a test by its phases, and the phases of the first launch are the ones that are reported, with the outcome
that the later launches come to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report.properties import make_launch_properties, make_verdict_properties
from pytest_gpuperf.report.verdict_line import VerdictCommands
from pytest_gpuperf.run.concluding import VERDICTS, WAITS, Ruling
from pytest_gpuperf.run.launches import find_launch
from pytest_gpuperf.run.pytest_internals import run_phases
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict


@dataclass(slots=True)
class Held:
    """A suspect test, whose reports wait."""

    item: pytest.Function
    reports: list[pytest.TestReport]
    verdicts: list[Verdict]
    present: dict[str, list[Metric]] = field(default_factory=dict)
    """What launches of the present code after the first measured, by metric."""
    broken: str = ""
    """Why a later launch of the present code came to nothing."""
    no_race: str = ""
    """Why the test cannot race, with the cure."""

    @property
    def identity(self) -> str:
        """Its node id, the same in each launch."""
        return find_launch(self.item).identity

    @property
    def suspects(self) -> list[Verdict]:
        """The metrics that nothing has decided about yet; none if the test is broken."""
        return [] if self.broken else [verdict for verdict in self.verdicts if verdict.suspect]

    @property
    def seconds(self) -> float:
        """How long its first launch took."""
        return sum(report.duration for report in self.reports)

    def decide(self, verdict: Verdict) -> None:
        """Puts a verdict in the place of the suspect's."""
        self.verdicts = [verdict if one.metric_name == verdict.metric_name else one for one in self.verdicts]


class HeldReports:
    """Runs perf tests, and keeps the reports of suspects until they are decided."""

    def __init__(self, commands: VerdictCommands, *, gains: bool) -> None:
        """Holds nothing yet.

        Args:
            commands: makes the commands of a test.
            gains: whether reports of tests with a metric that gained wait until all metrics are decided.
        """
        self._commands = commands
        self._gains = gains
        self._held: list[Held] = []

    def run(self, item: pytest.Function, nextitem: pytest.Item | None) -> None:
        """Runs a perf test, and reports it unless it is suspect."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        item.stash[WAITS] = self._waits
        reports = run_phases(item, nextitem, log=False)
        verdicts = item.stash.get(VERDICTS, None)
        if verdicts is not None and all(report.passed for report in reports):
            self._held.append(Held(item, reports, verdicts))
        else:
            for report in reports:
                if verdicts is not None:  # the test failed for another reason; reports show its metrics, too
                    report.user_properties += make_verdict_properties(verdicts)
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    @property
    def tests(self) -> list[Held]:
        """Those that wait."""
        return list(self._held)

    def release(self) -> None:
        """Reports all that wait, as they are decided; what is not is undecided, since the run ends."""
        held, self._held = self._held, []
        for test in held:
            self._report(test)

    def _waits(self, verdict: Verdict) -> bool:
        return verdict.suspect or (self._gains and verdict.outcome is Outcome.IMPROVED)

    def _report(self, test: Held) -> None:
        for report in test.reports:  # JUnit takes the last one's
            report.user_properties += make_verdict_properties(test.verdicts)
        call = next(report for report in test.reports if report.when == "call")
        if test.broken:
            _forget_xfail(call)
            call.outcome, call.longrepr = "failed", test.broken
            for report in test.reports:
                report.user_properties += make_launch_properties(test.identity, "call")
        else:
            _rule(call, Ruling.of(test.verdicts, self._commands), test.item)
        for report in test.reports:
            test.item.ihook.pytest_runtest_logreport(report=report)


def _rule(report: pytest.TestReport, ruling: Ruling, item: pytest.Item) -> None:
    if ruling.outcome == "failed" and hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "skipped", ruling.text  # which pytest counts as the failure that was expected
    elif ruling.outcome == "failed":
        report.outcome, report.longrepr = "failed", ruling.text
    elif ruling.outcome == "skipped":
        _forget_xfail(report)
        path, line, _ = item.location
        report.outcome, report.longrepr = "skipped", (path, (line or 0) + 1, f"Skipped: {ruling.text}")


def _forget_xfail(report: pytest.TestReport) -> None:
    # What pytest noted of a body that passed though it is marked xfail; it would count as that and not as what it is.
    if hasattr(report, "wasxfail"):
        del report.wasxfail
