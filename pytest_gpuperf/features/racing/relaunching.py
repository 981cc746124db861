"""Later launches of the tests of this process: each in fresh ranks and communicators, and reported to nobody."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence

import pytest

from pytest_gpuperf.features.racing.arms.arm import Measured
from pytest_gpuperf.run.concluding import FIGURES
from pytest_gpuperf.run.current_launch import CurrentLaunch
from pytest_gpuperf.run.launches import copy_for_launch, find_launch
from pytest_gpuperf.run.pytest_internals import run_phases
from pytest_gpuperf.run.selection import hash_test_body, is_perf_function, world_size

_REPORTS = pytest.StashKey[list[pytest.TestReport]]()
"""On an item of a later launch, in order of its phases."""
_WORDS = 4000  # characters of a problem that are told


class Relaunching:
    """Launches tests that this process has collected, as an arm does; a plugin of pytest."""

    def __init__(self, launch: CurrentLaunch, name: str = "the present code") -> None:
        """Has launched nothing.

        Args:
            launch: that is measured.
            name: what messages call the code.
        """
        self.name = name
        self.seconds = 0.0
        self._launch = launch
        self._number = 1  # that of an item as it was collected
        self._items: Sequence[pytest.Item] = ()
        self._ours: pytest.Function | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Takes note of the tests."""
        self._items = session.items

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Runs a test of a later launch, and keeps its reports; other plugins wrap it as any other test."""
        if item is not self._ours:
            return None
        item.stash[_REPORTS] = run_phases(item, nextitem, log=False)
        return True

    def launch(self, tests: Sequence[str], limit: float = 0.0) -> Mapping[str, Measured]:
        """Runs each test once, all of them in one set of fresh processes and communicators.

        Args:
            tests: node ids.
            limit: bounds nothing here: the ranks of a test that hangs are ended by the test's own timeout.
        """
        began = time.monotonic()
        self._number += 1
        self._launch.tests = tests
        found = {find_launch(item).identity: item for item in self._items}
        measured = [(test, item) for test in tests if is_perf_function(item := found.get(test))]
        measured.sort(key=lambda one: world_size(one[1]) or 0)  # the world, and with it the processes, changes seldom
        clones = [(test, copy_for_launch(item, self._number)) for test, item in measured]
        results = {test: Measured(problem=self._lack(there=test in found)) for test in tests}
        followers = [clone for _, clone in clones[1:]]
        for (test, clone), following in itertools.zip_longest(clones, followers):
            self._ours = clone
            clone.stash[FIGURES] = {}
            clone.ihook.pytest_runtest_protocol(item=clone, nextitem=following)
            results[test] = self._measure(clone)
        self.seconds = time.monotonic() - began
        return results

    def start(self) -> None:
        """The process runs already."""

    def close(self) -> None:
        """The process goes on."""

    def _measure(self, clone: pytest.Function) -> Measured:
        body, software = hash_test_body(clone), dict(self._launch.software)
        bad = next((report for report in clone.stash[_REPORTS] if not report.passed), None)
        if bad is None:
            figures = clone.stash[FIGURES]
            return Measured(figures, body, software)
        verb = "was skipped" if bad.skipped else "failed"
        return Measured(
            body_hash=body, software=software, problem=f"it {verb} in its {bad.when}: {describe_problem(bad)}"
        )

    def _lack(self, *, there: bool) -> str:
        if there:
            return f"{self.name} has the test, and it is no perf test there"
        return f"{self.name} has no such test"


def describe_problem(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a phase or a collection did not pass."""
    if isinstance(report.longrepr, tuple):  # of a skip: a file, a line, and why
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.longreprtext[-_WORDS:]
