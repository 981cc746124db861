"""The run of an arm: it collects, and then launches what its controller asks for, instead of running every test."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

import pytest

from pytest_gpuperf.features.racing.arms.arm import Measured
from pytest_gpuperf.features.racing.arms.child import Link
from pytest_gpuperf.features.racing.arms.messages import Collected, Launched
from pytest_gpuperf.features.racing.arms.redirect import find_installed
from pytest_gpuperf.features.racing.arms.strays import list_loaded_strays
from pytest_gpuperf.features.racing.relaunching import Relaunching, describe_problem
from pytest_gpuperf.run.concluding import FIGURES
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.run.selection import world_size


class ArmLoop:
    """Answers the controller; a plugin of the arm's process alone."""

    def __init__(self, link: Link, ranks: CurrentRanks, relaunching: Relaunching) -> None:
        """Has launched nothing.

        Args:
            link: to the controller.
            ranks: that the tests run on.
            relaunching: launches the tests.
        """
        self._link = link
        self._ranks = ranks
        self._relaunching = relaunching
        self._old = find_installed() is not None
        self._not_collected: dict[str, str] = {}
        """Why files, classes or functions came to no tests, by node id."""
        self._stray = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keeps what went wrong for the tests that it concerns."""
        if not report.passed:
            self._not_collected[report.nodeid] = describe_problem(report)

    def pytest_internalerror(self, excrepr: object) -> None:
        """Prints why the run ends."""
        self._print(str(excrepr))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Prints why the run ends, which a test has asked for."""
        self._print(excinfo.exconly())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        """Serves until the controller hangs up."""
        channel = self._link.channel
        with suppress(EOFError, ConnectionResetError, BrokenPipeError):
            channel.send(Collected())
            while True:
                request, _ = channel.receive()
                channel.send(self._launch(request.tests))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Looks at the code that the test's ranks have loaded, while they are there; in each arm alike."""
        size = world_size(item)
        if size is None or not item.stash.get(FIGURES, None):
            return
        loaded = self._ranks.run(size, list_loaded_strays, (self._link.repository, self._old), {}, list_loaded_strays)
        for rank, strays in enumerate(loaded):
            self._note_strays(f"rank {rank}", strays)

    def _launch(self, tests: Sequence[str]) -> Launched:
        self._stray = ""
        results = dict(self._relaunching.launch(tests))
        for test, measured in results.items():
            if (why := self._say_uncollected(test)) and measured.problem and not measured.body_hash:
                results[test] = Measured(problem=why)
        self._note_strays("the pytest process", list_loaded_strays(None, self._link.repository, self._old))
        return Launched(results, self._stray)

    def _say_uncollected(self, test: str) -> str:
        for nodeid, text in self._not_collected.items():
            if test.startswith(nodeid):
                return f"{nodeid} could not be collected: {text}"
        return ""

    def _print(self, text: str) -> None:
        os.write(self._link.log, f"{text}\n".encode(errors="backslashreplace"))

    def _note_strays(self, who: str, strays: Sequence[str]) -> None:
        if strays and not self._stray:
            self._stray = f"{who} loaded {strays[0]}"
