"""What the reports of a run told, wherever its tests ran: verdicts, failures, and tests that did not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pytest_gpuperf.report.keyword import RANKS_KEYWORD
from pytest_gpuperf.report.kinds import KINDS
from pytest_gpuperf.report.place import Place, extract_message, find_place
from pytest_gpuperf.report.properties import has_failed_by_itself, is_final, read_unchecked, read_verdicts
from pytest_gpuperf.report.shown import Collected, Shown
from pytest_gpuperf.report.undecided_lines import is_unraced
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Failure:
    """A phase of a test on ranks that failed for another reason than a verdict."""

    test: str
    when: str
    message: str
    place: Place


class Findings:
    """Collects from the reports as they are logged; a plugin of the process that has them all."""

    def __init__(self, kinds: Sequence[Shown] = KINDS) -> None:
        """Has found nothing yet.

        Args:
            kinds: of what tests show.
        """
        self.verdicts: list[Verdict] = []
        self.unchecked: list[tuple[str, str]] = []
        """Metrics that have a baseline and that their tests did not check: test, metric."""
        self.shown = Collected(kinds)
        self.failures: list[Failure] = []
        self.places: dict[str, Place] = {}
        """The places of tests with verdicts, by node id."""
        self._outcomes: dict[str, str] = {}
        self._skips: Counter[tuple[str, str]] = Counter()
        self._ran: set[str] = set()

    @property
    def nowhere(self) -> Counter[tuple[str, str]]:
        """Tests that ran in no variant: how many variants, by reason and test."""
        return Counter({key: count for key, count in self._skips.items() if key[1] not in self._ran})

    def fails_by_environment(self, fails: bool | None) -> bool:
        """Whether a metric is worse through no fault of the code, so that the run fails.

        Args:
            fails: Whether any does; None: only on GPUs that the record knows, and metrics at half their speed.
        """
        lost = [one for one in self.verdicts if one.outcome is Outcome.ENVIRONMENT]
        return bool(lost) if fails else fails is None and any(one.reason is not Reason.ELSEWHERE for one in lost)

    @property
    def undecided(self) -> bool:
        """Whether a metric is worse, and nothing decided why."""
        return any(one.outcome is Outcome.UNDECIDED for one in self.verdicts)

    @property
    def unraced(self) -> bool:
        """Whether a metric that has no record to be held against could not race."""
        return any(map(is_unraced, self.verdicts))

    @property
    def outcomes(self) -> Counter[str]:
        """How many tests on ranks failed, passed and were skipped."""
        return Counter(self._outcomes.values())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes note of one phase of a test."""
        if not is_final(report):
            return
        verdicts = read_verdicts(report)
        if report.when == "call" and verdicts is not None:
            self.verdicts += verdicts
            self.places.update((verdict.test, find_place(report)) for verdict in verdicts)
        if report.when == "call":
            self.unchecked += [(report.nodeid, name) for name in read_unchecked(report)]
            self.shown.take(report)
        if RANKS_KEYWORD not in report.keywords:
            return
        if report.when == "call" or not report.passed:
            # A failed teardown is the test's outcome, a skip in it is none.
            worst = self._outcomes.get(report.nodeid)
            self._outcomes[report.nodeid] = "failed" if worst == "failed" else report.outcome
        if has_failed_by_itself(report, failing=any(verdict.fails for verdict in verdicts or [])):
            self.failures.append(Failure(report.nodeid, report.when, extract_message(report), find_place(report)))
        test = report.nodeid.partition("[")[0]
        # A test with verdicts ran, also where nothing could be decided.
        if report.skipped and verdicts is None and isinstance(report.longrepr, tuple):
            self._skips[str(report.longrepr[2]).removeprefix("Skipped: "), test] += 1
        elif report.when == "call" or report.failed:
            self._ran.add(test)
