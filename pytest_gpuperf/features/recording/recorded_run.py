"""The plugin of a recording: each perf test runs once in each launch, and is kept once all its phases have passed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

import pytest

from pytest_gpuperf.features.recording.journal import JournalError
from pytest_gpuperf.features.recording.recording import Recording
from pytest_gpuperf.options import runs_tests
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.run.exit_status import PASSED, is_interrupted
from pytest_gpuperf.run.launches import LaunchOf, find_launch
from pytest_gpuperf.run.pytest_internals import run_phases
from pytest_gpuperf.run.selection import drop_measured, is_perf, list_planned, sort_by_launch


class RecordedRun:
    """Orders the launches, and follows the reports: a test may still fail when its body has ended."""

    def __init__(self, recording: Recording, choices: Callable[[pytest.Item], Mapping[str, str]]) -> None:
        """Nothing is recorded yet.

        Args:
            recording: takes the metrics.
            choices: Returns what NCCL chooses on the GPUs of a test.
        """
        self._recording = recording
        self._choices = choices
        self._launches: dict[str, LaunchOf] = {}
        """By the items' own node ids."""
        self._problem = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Leaves out what an interrupted recording has, and puts the launches one after another."""
        yield
        if runs_tests(config):
            try:
                measured = drop_measured(items, self._recording.plan(list_planned(items)))
            except JournalError as error:
                raise pytest.UsageError(make_one_line(str(error))) from error
            config.hook.pytest_deselected(items=measured)
        sort_by_launch(items)

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
        self._launches = {item.nodeid: find_launch(item) for item in session.items if is_perf(item)}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Keeps what NCCL chose, once all launches have been measured."""
        result = yield
        if runs_tests(session.config) and (measured := [item for item in session.items if is_perf(item)]):
            self._recording.nccl = self._choices(measured[0])
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes what was recorded, also of a run that was interrupted, and fails a run that could not."""
        recording = self._recording
        saved = recording.save(interrupted=is_interrupted(session))
        failed = (saved is not None and saved.failed) or (not recording.resumable and bool(recording.left_out()))
        session.exitstatus = choose_exit_status(session.exitstatus, saved=saved is not None, failed=failed)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes note of a phase; the last one says what becomes of the metrics."""
        launch = self._launches.get(report.nodeid)
        if launch is None:
            return
        if report.when == "setup":
            self._problem = ""
        if not report.passed and not self._problem:
            skipped = report.skipped and not hasattr(report, "wasxfail")
            self._problem = "was skipped" if skipped else "failed"
        if report.when == "teardown":
            self._recording.note_ended(launch.identity, launch.number, self._problem)


def choose_exit_status(status: int, *, saved: bool, failed: bool) -> int:
    """The exit status of a run that records, from that which its tests gave it.

    A failure stays what it is. A recording that was resumed and had nothing left to measure has collected no tests, and
    is a success if it was written.

    Args:
        status: pytest's, so far.
        saved: whether there was something to write.
        failed: whether it was not written as it was asked for, or a test that was recorded is left out of it.
    """
    if status not in PASSED:
        return status
    if failed:
        return pytest.ExitCode.TESTS_FAILED
    return pytest.ExitCode.OK if saved else status
