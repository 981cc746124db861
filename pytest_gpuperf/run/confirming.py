"""Suspects and their fresh launches: a perf test that came out worse is measured again before it fails.

Its report is held back until fresh launches have decided; all suspects of a run share them. pytest reports a test
by its phases, and the phases of the first launch are the ones that are reported, with the outcome that the
fresh ones come to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report.properties import fresh_launch_properties, verdict_properties
from pytest_gpuperf.report.units import format_value
from pytest_gpuperf.report.verdict_line import RecordCommand
from pytest_gpuperf.run.concluding import FIGURES, VERDICTS, Ruling
from pytest_gpuperf.run.judging import Judging
from pytest_gpuperf.run.launches import again, launch_of
from pytest_gpuperf.run.pytest_internals import run_phases, tear_down_before
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict

_REPORTS = pytest.StashKey[list[pytest.TestReport]]()
"""Of an item that is a fresh launch of a suspect, in order of its phases."""


@dataclass(slots=True)
class Held:
    """A suspect test, whose reports wait."""

    item: pytest.Function
    reports: list[pytest.TestReport]
    verdicts: list[Verdict]
    launches: int = 0
    """How many fresh ones its suspects need; 0 where none would help."""
    shifted: frozenset[str] = frozenset()
    """Names of its suspects that moved as the whole run did, and get no fresh launches."""
    figures: dict[str, list[Metric]] = field(default_factory=dict)
    broken: pytest.TestReport | None = None
    """The first phase of a fresh launch that did not pass."""

    @property
    def suspects(self) -> list[Verdict]:
        """The figures that fresh launches decide about."""
        return [verdict for verdict in self.verdicts if verdict.outcome is Outcome.SUSPECT]

    @property
    def call(self) -> pytest.TestReport:
        """The report of the test's body."""
        return next(report for report in self.reports if report.when == "call")


class Confirmation:
    """The suspects of one run."""

    def __init__(self, judging: Judging, command: RecordCommand, say: Callable[[str], None]) -> None:
        """Holds nothing yet.

        Args:
            judging: judges the figures.
            command: makes the command that records a baseline.
            say: prints a line while the run goes on.
        """
        self._judging = judging
        self._command = command
        self._say = say
        self._held: list[Held] = []

    def protocol(self, item: pytest.Function, nextitem: pytest.Item | None, *, at_once: bool) -> None:
        """Runs a perf test; reports it unless it is suspect, or a fresh launch of one that is.

        Args:
            item: the test.
            nextitem: what runs after it.
            at_once: whether a suspect is decided before the next test, in launches of its own.
        """
        if launch_of(item).number > 1:
            item.stash[_REPORTS] = run_phases(item, nextitem, log=False)
            return
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = run_phases(item, nextitem, log=False)
        verdicts = item.stash.get(VERDICTS, None)
        if verdicts is None or not all(report.passed for report in reports):
            for report in reports:
                if verdicts is not None:  # it has failed otherwise; its figures are told all the same
                    report.user_properties += verdict_properties(verdicts)
                item.ihook.pytest_runtest_logreport(report=report)
        else:
            self._held.append(Held(item, reports, verdicts))
            if at_once:
                self.decide(nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def decide(self, nextitem: pytest.Item | None = None) -> None:
        """Measures all suspects in fresh launches, and reports them; if interrupted, it leaves them to ``release``."""
        for test in self._held:
            judge = self._judging.judge
            test.shifted = frozenset(one.metric_name for one in test.suspects if judge.moved_with_the_run(one))
            alone = [one for one in test.suspects if one.metric_name not in test.shifted]
            test.launches = max(map(judge.launches, alone), default=0)
        if any(test.launches for test in self._held):
            self._measure(nextitem)
        held, self._held = self._held, []
        for test in held:
            self._report(test)

    def release(self) -> None:
        """Reports suspects that nothing was decided about, since the run is interrupted."""
        held, self._held = self._held, []
        for test in held:
            test.launches = 0
            self._report(test, interrupted=True)

    def _measure(self, nextitem: pytest.Item | None) -> None:
        rounds = max(test.launches for test in self._held)
        launches = [
            (test, again(test.item, number + 2))
            for number in range(rounds)
            for test in self._held
            if number < test.launches
        ]
        names = ", ".join(test.item.nodeid for test in self._held if test.launches)
        self._say(f"worse than expected, {rounds} fresh launches decide: {names}")
        while launches:
            (test, clone), *launches = launches
            following = launches[0][1] if launches else nextitem
            # By the hook: who wraps a test wraps its fresh launches, with a timeout or filters of warnings for example.
            clone.ihook.pytest_runtest_protocol(item=clone, nextitem=following)
            reports = clone.stash[_REPORTS]
            test.broken = next((report for report in reports if not report.passed), None)
            figures = clone.stash.get(FIGURES, {})
            lacking = [suspect.metric_name for suspect in test.suspects if suspect.metric_name not in figures]
            if test.broken is None and lacking:
                call = next(report for report in reports if report.when == "call")
                call.longrepr = (
                    f"{clone.nodeid}: the test checked no {', '.join(lacking)} in this launch, as it had before"
                )
                test.broken = call
            for name, metric in figures.items():
                test.figures.setdefault(name, []).append(metric)
            test.call.user_properties += clone.user_properties  # what the launch measured, for --gpuperf-json
            if test.broken is not None:
                launches = [launch for launch in launches if launch[0] is not test]
                if following is not (follower := launches[0][1] if launches else nextitem):
                    test.broken.sections += tear_down_before(clone, follower)

    def _report(self, test: Held, *, interrupted: bool = False) -> None:
        undecided = interrupted or test.broken is not None
        verdicts = [self._decided(test, verdict, undecided) for verdict in test.verdicts]
        for report in test.reports:  # JUnit takes the last one's
            report.user_properties += verdict_properties(verdicts)
        if test.broken is not None:
            _fail(test, test.broken)
        else:
            _rule(test.call, Ruling.of(verdicts, self._command), test.item)
        for report in test.reports:
            test.item.ihook.pytest_runtest_logreport(report=report)

    def _decided(self, test: Held, verdict: Verdict, undecided: bool) -> Verdict:
        if verdict.outcome is not Outcome.SUSPECT or undecided:
            return verdict
        if verdict.metric_name in test.shifted:
            return verdict.shifted()
        figures = test.figures.get(verdict.metric_name, [])
        # Other figures of the test may have had launches where this one could do nothing with any.
        return self._judging.confirmed(verdict, figures if self._judging.judge.launches(verdict) else [])


def _rule(report: pytest.TestReport, ruling: Ruling, item: pytest.Item) -> None:
    if ruling.outcome == "failed" and hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "skipped", ruling.text  # which pytest counts as the failure that was expected
    elif ruling.outcome == "failed":
        report.outcome, report.longrepr = "failed", ruling.text
    elif ruling.outcome == "skipped":
        _forget_xfail(report)
        path, line, _ = item.location
        report.outcome, report.longrepr = "skipped", (path, (line or 0) + 1, f"Skipped: {ruling.text}")


def _fail(test: Held, broken: pytest.TestReport) -> None:
    report = test.call
    _forget_xfail(report)
    report.outcome, report.longrepr = "failed", broken.longrepr
    if broken.skipped and isinstance(broken.longrepr, tuple):  # a file, a line, and why
        reason = str(broken.longrepr[2]).removeprefix("Skipped: ")
        report.longrepr = (
            f"{broken.nodeid}: a fresh launch was skipped, expected a figure of each: {reason}; so nothing was decided "
            f"of {'; '.join(_figures(test, suspect) for suspect in test.suspects)}: let the test skip in every launch "
            "or in none"
        )
    for each in test.reports:
        each.user_properties += fresh_launch_properties(broken.nodeid, broken.when)
    report.sections += [*broken.sections, ("gpuperf", f"in a fresh launch, {broken.nodeid}, {broken.when}")]


def _forget_xfail(report: pytest.TestReport) -> None:
    # What pytest noted of a body that passed though it is marked xfail; it would count as that and not as what it is.
    if hasattr(report, "wasxfail"):
        del report.wasxfail


def _figures(test: Held, suspect: Verdict) -> str:
    fresh = [format_value(figure.value, figure.unit) for figure in test.figures.get(suspect.metric_name, [])]
    first = format_value(suspect.metric.value, suspect.metric.unit)
    return f"{suspect.metric_name} ({first} in the first launch, {', '.join(fresh) or 'none'} in fresh ones)"
