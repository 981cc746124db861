"""``--mutate``: collects call sites while tests run, then runs those tests again with one fault at a time."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.features.mutating.coverage import Coverage, Judged, Outcome
from pytest_gpuperf.features.mutating.faults import Calls, Fault, Kind, Site, list_kinds
from pytest_gpuperf.features.mutating.lines import describe_plan
from pytest_gpuperf.features.mutating.on_rank import Observation, Observed, observe
from pytest_gpuperf.features.mutating.source_calls import is_made, iterate_calls, list_user_files
from pytest_gpuperf.features.mutating.trying import Trying
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.run.hypothesis_internals import is_drawn
from pytest_gpuperf.run.launches import copy_for_launch, find_launch
from pytest_gpuperf.run.pytest_internals import reports_kept_back, run_phases, tear_down_before

_LEAST_TIMEOUT = 10.0  # seconds for a run with a fault
_TIMES = 10.0  # as long as the test took without one


@dataclass(slots=True)
class Run:
    """One run of a test: what each of its programs came to, by rank."""

    fault: Fault | None = None
    until: float = math.inf
    """When its time is up, by ``time.monotonic()``: hypothesis would run a program that hangs again and again."""
    most: float = math.inf
    """How many programs it may run: hypothesis would look for a smaller example that fails."""
    begun: int = 0
    """How many programs it has begun."""
    programs: list[list[Observation]] = field(default_factory=list)

    @property
    def sites(self) -> dict[Site, Calls]:
        """All sites that a rank has seen."""
        found: dict[Site, Calls] = {}
        for ranks in self.programs:
            for seen in ranks:
                for site, calls in seen.sites.items():
                    if site in found:
                        found[site].add(calls)
                    else:
                        found[site] = replace(calls)
        return found

    @property
    def digests(self) -> list[list[bytes]]:
        """What each program came to on each rank."""
        return [[seen.digest for seen in ranks] for ranks in self.programs]

    @property
    def sent(self) -> list[list[bytes]]:
        """What each program sent from each rank."""
        return [[seen.sent for seen in ranks] for ranks in self.programs]

    def total(self, count: Callable[[Observation], int]) -> int:
        """The sum over programs and ranks."""
        return sum(count(seen) for ranks in self.programs for seen in ranks)


@dataclass(slots=True)
class Test:
    """A test that passes."""

    item: pytest.Function
    run: Run
    seconds: float
    """How long it took when it ran last without a fault."""
    repeatable: bool | None = None
    """Whether two runs of it come to the same; None until that was tried."""
    sends_alike: bool = True
    """Whether they also send the same: on GPUs, what pads a buffer may be anything."""

    @property
    def name(self) -> str:
        """Its node id."""
        return find_launch(self.item).identity


class Mutating:
    """Collects call sites, makes the faults, and reports; a plugin of pytest."""

    def __init__(
        self,
        ranks: CurrentRanks,
        tell: Callable[[str], None],
        root: Path,
        budget: float,
        take: Callable[[Coverage], None],
    ) -> None:
        """Stands between tests and ranks from now on.

        Args:
            ranks: of the test that runs.
            tell: prints a line.
            root: to which files are relative.
            budget: seconds for all faults.
            take: gets what became of the faults, also of a run that is interrupted.
        """
        ranks.around = self
        self._ranks = ranks
        self._tell = tell
        self._root = root
        self._budget = budget
        self._take = take
        self.runs: dict[str, Run] = {}
        """By the item's node id."""
        self._outcomes: dict[str, list[pytest.TestReport]] = {}
        self._number = 1

    def enter(
        self, entry: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
        """What the ranks call in place of a program."""
        current = self._ranks.current
        run = self.runs.setdefault(current.item.nodeid, Run())
        left = run.until - time.monotonic()
        if left <= 0:
            pytest.fail("the time of this fault is up, so that it counts as noticed", pytrace=False)
        if run.begun >= run.most:
            pytest.fail("an example has failed, so that the fault counts as noticed", pytrace=False)
        run.begun += 1
        current.timeout = min(current.timeout, left)
        return observe, (run.fault, f"{self._number}.{run.begun}", entry, tuple(args), kwargs), {}

    def leave(self, results: Sequence[Observed]) -> list[Any]:
        """The program's own results."""
        self.runs[self._ranks.current.item.nodeid].programs.append([one.observation for one in results])
        return [one.result for one in results]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes note of what becomes of each test."""
        if report.when == "setup":
            self._outcomes[report.nodeid] = []
        self._outcomes.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Makes the faults once every test has run."""
        result = yield
        if not session.config.pluginmanager.hasplugin("dsession"):  # of xdist, whose workers have run the tests
            self._mutate(session.items)
        return result

    def _mutate(self, items: Sequence[pytest.Item]) -> None:
        began = time.monotonic()
        coverage = Coverage()
        tests = [test for item in items if (test := self._select_passed(item)) is not None]
        tests.sort(key=lambda test: test.seconds)
        reached: dict[Site, list[Test]] = {}
        for test in tests:
            for site, calls in test.run.sites.items():
                reached.setdefault(site, []).append(test)
                coverage.see(site, calls, test.name)
        observed_sites = {site for run in self.runs.values() for site in run.sites}
        files = {*list_user_files(list(sys.modules.values()), self._root), *_select_existing(observed_sites)}
        coverage.calls = {call for file in files for call in iterate_calls(file)}
        coverage.made = {call for call in coverage.calls if is_made(call, observed_sites)}
        plan = [Fault(site, kind) for site in reached for kind in list_kinds(coverage.sites[site])]
        rounds = {fault: list_kinds(coverage.sites[fault.site]).index(fault.kind) for fault in plan}
        plan.sort(key=rounds.__getitem__)
        self._tell(describe_plan(len(plan), len(reached), sum(reached[fault.site][0].seconds for fault in plan)))
        trying = Trying(len(plan), self._budget, self._tell)
        try:
            for fault in plan:
                if time.monotonic() - began > self._budget:
                    coverage.left_over = set(plan[plan.index(fault) :])
                    break
                tests = [test for test in reached[fault.site] if self._is_repeatable(test, coverage)]
                if tests:
                    coverage.judged.append(self._judge(fault, tests))
                trying.note_tried(unnoticed=bool(tests) and coverage.judged[-1].outcome is Outcome.UNNOTICED)
        finally:
            coverage.seconds = time.monotonic() - began
            self._take(coverage)

    def _select_passed(self, item: pytest.Item) -> Test | None:
        run = self.runs.get(item.nodeid)
        if run is None or not run.sites or not isinstance(item, pytest.Function):
            return None
        reports = self._outcomes.get(item.nodeid, [])
        if not reports or not all(report.passed and not hasattr(report, "wasxfail") for report in reports):
            return None
        return Test(item, run, sum(report.duration for report in reports))

    def _is_repeatable(self, test: Test, coverage: Coverage) -> bool:
        """Runs a test once or twice more without a fault, before its first one, and takes its time."""
        if test.repeatable is None:
            why = self._varies(test, coverage)
            test.repeatable = not why
            if why:
                coverage.left_out[test.name] = why
        return test.repeatable

    def _varies(self, test: Test, coverage: Coverage) -> str:
        for _ in range(2):  # the first run may have met fixtures that tests before it had set up
            before, began = test.run, time.monotonic()
            passed, test.run = self._run_again(test, Run())
            test.seconds = time.monotonic() - began
            if not passed:
                return "it does not pass when it is run again"
            test.sends_alike = test.run.sent == before.sent
            if alike := test.run.digests == before.digests:
                coverage.seconds_of[test.name] = test.seconds
                if test.sends_alike:
                    break
        return "" if alike else "two runs of it differ"

    def _run_again(self, test: Test, run: Run) -> tuple[bool, Run]:
        self._number += 1
        clone = copy_for_launch(test.item, self._number)
        # The text of a failure is not shown, and pytest parses the files of a whole traceback for it.
        vars(clone)["repr_failure"] = lambda excinfo, style=None: ""
        self.runs[clone.nodeid] = run
        with warnings.catch_warnings(), reports_kept_back(clone.session) as of_subtests:
            warnings.simplefilter("ignore")  # those of a program with a fault are nobody's
            # Ranks stay for the next run, and fixtures of any scope do not: they may hold what a fault came to.
            reports = run_phases(clone, test.item, log=False)
            problems = tear_down_before(clone, None)
        del self.runs[clone.nodeid]
        passed = all(report.passed for report in reports) and not any(report.failed for report in of_subtests)
        return passed and not problems, run

    def _judge(self, fault: Fault, tests: Sequence[Test]) -> Judged:
        outcome, seconds = Outcome.NOT_MADE, 0.0
        for test in tests:
            timeout = max(_LEAST_TIMEOUT, _TIMES * test.seconds)
            made = _make_fault(fault, test.run.sites[fault.site].count)
            began = time.monotonic()
            most = test.run.begun if is_drawn(test.item.obj) else math.inf
            passed, run = self._run_again(test, Run(made, began + timeout, most))
            seconds += time.monotonic() - began
            if not passed:
                return Judged(fault, Outcome.NOTICED, test.name, seconds)
            if not run.total(lambda seen: seen.applied):
                continue
            outcome = max(outcome, _judge_passed(run, test))
        return Judged(fault, outcome, seconds=seconds)


def _make_fault(fault: Fault, count: int) -> Fault:
    """What the ranks make of a fault in a test whose programs make so many calls at the site."""
    return Fault(fault.site, Kind.SKIPPED, count) if fault.kind is Kind.LAST else fault


def _select_existing(sites: Iterable[Site]) -> Iterator[Path]:
    return (Path(site.file) for site in sites if site.file and Path(site.file).is_file())


def _judge_passed(run: Run, test: Test) -> Outcome:
    """Whether a fault changed anything of a test's run that passed."""
    if not run.total(lambda seen: seen.changed):
        return Outcome.EQUIVALENT
    shows = all(seen.shows for ranks in run.programs for seen in ranks)
    alike = run.digests == test.run.digests and (run.sent == test.run.sent or not test.sends_alike)
    return Outcome.EQUIVALENT if shows and alike else Outcome.UNNOTICED
