"""The plugin of a judged run: reports of suspects are held back until later launches have decided."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_gpuperf.features.racing.racing import Racing
from pytest_gpuperf.options import is_worker
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.repository import CannotRace
from pytest_gpuperf.run.interruptions import sigterm_raises
from pytest_gpuperf.run.selection import is_perf, measures


class RacedRun:
    """Hands perf tests to ``Racing``, which decides once every test has run."""

    def __init__(self, racing: Racing) -> None:
        self._racing = racing

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Refuses a commit that is not there before anything is measured."""
        if session.config.option.collectonly or not measures(session.items):
            return
        try:
            self._racing.require()
        except CannotRace as error:
            raise pytest.UsageError(make_one_line(str(error))) from error

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Holds a suspect's report back until more launches have decided."""
        if not (is_perf(item) and isinstance(item, pytest.Function)):
            return None
        # A worker must report a test before it takes the next one.
        self._racing.protocol(item, nextitem, at_once=is_worker(item.config))
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Decides about the suspects once every test has run."""
        try:
            result = yield
            with sigterm_raises():  # or it would leave the arms, and their worktrees in the user's repository
                self._racing.decide(whole_run=not is_worker(session.config))
        finally:
            self._racing.release()
        return result
