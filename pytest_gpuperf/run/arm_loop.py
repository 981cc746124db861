"""The run of an arm: it collects, and then launches what its controller asks for, instead of running every test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress

import pytest

from pytest_gpuperf.arms.arm import Measured
from pytest_gpuperf.arms.child import Link
from pytest_gpuperf.arms.loaded import loaded_code
from pytest_gpuperf.arms.messages import Collected, Launched
from pytest_gpuperf.run.concluding import FIGURES
from pytest_gpuperf.run.current_launch import CurrentLaunch
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.run.launches import again, launch_of
from pytest_gpuperf.run.pytest_internals import run_phases
from pytest_gpuperf.run.selection import body_of, is_perf_function, world_size

_REPORTS = pytest.StashKey[list[pytest.TestReport]]()
"""On an item of a launch, in order of its phases."""
_WORDS = 4000  # characters of a problem that are told


class ArmLoop:
    """Answers the controller; a plugin of the arm's process alone."""

    def __init__(self, link: Link, ranks: CurrentRanks, launch: CurrentLaunch) -> None:
        """Has launched nothing.

        Args:
            link: to the controller.
            ranks: that the tests run on.
            launch: that is measured.
        """
        self._link = link
        self._ranks = ranks
        self._launch = launch
        self._number = 1  # that of an item as it was collected, which is never run
        self._not_collected: dict[str, str] = {}
        """Why files, classes or functions came to no tests, by node id."""
        self._stray = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keeps what went wrong for the tests that it concerns."""
        if not report.passed:
            self._not_collected[report.nodeid] = _text(report)

    def pytest_internalerror(self, excrepr: object) -> None:
        """Prints why the run ends."""
        self._print(str(excrepr))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Prints why the run ends, which a test has asked for."""
        self._print(excinfo.exconly())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serves until the controller hangs up."""
        channel = self._link.channel
        with suppress(EOFError, ConnectionResetError, BrokenPipeError):
            channel.send(Collected())
            while True:
                request, _ = channel.receive()
                channel.send(self._launched(session.items, request.tests))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Runs a test and reports it to nobody."""
        item.stash[_REPORTS] = run_phases(item, nextitem, log=False)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Looks at the code that the test's ranks have loaded, while they are there; in each arm alike."""
        size = world_size(item)
        if size is None or FIGURES not in item.stash:
            return
        loaded = self._ranks.run(size, loaded_code, (self._link.repository,), {}, loaded_code)
        for rank, files in enumerate(loaded):
            self._note_strays(f"rank {rank}", files)

    def _launched(self, items: Sequence[pytest.Item], tests: Sequence[str]) -> Launched:
        self._number += 1
        self._stray = ""
        found = {launch_of(item).identity: item for item in items}
        measured = [(test, item) for test in tests if is_perf_function(item := found.get(test))]
        measured.sort(key=lambda one: world_size(one[1]) or 0)  # the world, and with it the processes, changes seldom
        clones = [(test, again(item, self._number)) for test, item in measured]
        results = {test: Measured(problem=self._lack(test, found.get(test))) for test in tests}
        followers = [clone for _, clone in clones[1:]]
        for (test, clone), following in itertools.zip_longest(clones, followers):
            clone.ihook.pytest_runtest_protocol(item=clone, nextitem=following)
            results[test] = self._measured(clone)
        self._note_strays("the pytest process", loaded_code(None, self._link.repository))
        return Launched(results, self._stray)

    def _measured(self, clone: pytest.Function) -> Measured:
        body, software = body_of(clone), dict(self._launch.software)
        bad = next((report for report in clone.stash[_REPORTS] if not report.passed), None)
        if bad is None:
            figures = clone.stash[FIGURES]
            return Measured(figures, body, software)
        verb = "was skipped" if bad.skipped else "failed"
        return Measured(body_hash=body, software=software, problem=f"it {verb} in its {bad.when}: {_text(bad)}")

    def _lack(self, test: str, item: pytest.Item | None) -> str:
        if item is not None:
            return f"{self._link.name} has the test, and it is no perf test there"
        for nodeid, text in self._not_collected.items():
            if test.startswith(nodeid):
                return f"{nodeid} could not be collected: {text}"
        return f"{self._link.name} has no such test"

    def _print(self, text: str) -> None:
        os.write(self._link.log, f"{text}\n".encode(errors="backslashreplace"))

    def _note_strays(self, who: str, files: Sequence[str]) -> None:
        redirect = self._link.redirect
        strays = [] if redirect is None else redirect.strays(files)
        if strays and not self._stray:
            self._stray = f"{who} loaded {strays[0]}"


def _text(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):  # of a skip: a file, a line, and why
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.longreprtext[-_WORDS:]
