"""The plugin of a recording: each perf test runs once in each launch, and is kept once all its phases have passed."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_gpuperf.run.launches import LaunchOf, launch_of
from pytest_gpuperf.run.pytest_internals import run_phases
from pytest_gpuperf.run.recording import Recording
from pytest_gpuperf.run.selection import in_launches, is_perf


class RecordedRun:
    """Orders the launches, and follows the reports: a test may still fail when its body has ended."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._launches: dict[str, LaunchOf] = {}
        """By the items' own node ids."""
        self._problem = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Puts the launches one after another again, if other plugins have ordered the tests after all."""
        yield
        in_launches(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Runs a perf test once in a launch: to run it until it passes would choose what is recorded."""
        if not (is_perf(item) and isinstance(item, pytest.Function)):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        run_phases(item, nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Learns what is going to be recorded."""
        self._launches = {item.nodeid: launch_of(item) for item in session.items if is_perf(item)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes note of a phase; the last one says what becomes of the figures."""
        launch = self._launches.get(report.nodeid)
        if launch is None:
            return
        if report.when == "setup":
            self._problem = ""
        if not report.passed and not self._problem:
            skipped = report.skipped and not hasattr(report, "wasxfail")
            self._problem = "was skipped" if skipped else "failed"
        if report.when == "teardown":
            self._recording.ended(launch.identity, launch.number, self._problem)
