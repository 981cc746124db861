"""The line that a user at a terminal sees while perf tests measure: which test, which launch, how long still."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pytest_gpuperf.report.console import Console
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.report.table import shorten

_MIN_ROOM = 20  # columns; with fewer left on pytest's own line, nothing is shown


@dataclass(frozen=True, slots=True)
class Measuring:
    """A perf test that is going to run."""

    test: str
    """Node id, the same in each launch."""
    launch: int
    """1 and up."""


class Progress:
    """Shows the line while a perf test runs, and takes it away before pytest prints the outcome."""

    def __init__(
        self,
        console: Console,
        launches: int,
        planned: Callable[[Sequence[pytest.Item]], Mapping[str, Measuring]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Not shown yet.

        Args:
            console: The terminal.
            launches: Of this run.
            planned: The perf tests among the items that are going to run, by the items' own node ids.
            clock: Seconds.
        """
        self._console = console
        self._launches = launches
        self._find = planned
        self._clock = clock
        self._planned: dict[str, Measuring] = {}
        self._took: dict[str, list[float]] = {}
        self._began = 0.0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Learns what is going to be measured."""
        self._planned = dict(self._find(session.items))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A test begins; its setup waits for GPUs and ranks."""
        if item.nodeid in self._planned:
            self._began = self._clock()
            self._show(item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Its body begins: the report of the setup has wiped the line."""
        if item.nodeid in self._planned:
            self._show(item.nodeid)

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """It has been measured, if its setup came so far."""
        done = self._planned.pop(item.nodeid, None)
        if done is not None:
            self._took.setdefault(done.test, []).append(self._clock() - self._began)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Something is going to be printed where the line is, which a report that is held back would leave."""
        self._console.wipe()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        """Something is going to be printed where the line is."""
        self._console.wipe()

    def pytest_keyboard_interrupt(self) -> None:
        """No report comes any more."""
        self._console.wipe()

    def estimate_seconds_left(self) -> float | None:
        """How long the tests that have not ended will take; None before the first has."""
        if not self._took:
            return None
        means = {test: statistics.mean(seconds) for test, seconds in self._took.items()}
        unknown = statistics.mean(means.values())
        return sum(means.get(measuring.test, unknown) for measuring in self._planned.values())

    def _show(self, nodeid: str) -> None:
        now, left = self._planned[nodeid], self.estimate_seconds_left()
        parts = [f"launch {now.launch} of {self._launches}"] if self._launches > 1 else []
        parts.append(f"{len(self._planned)} to go")
        if left is not None:
            parts.append(f"about {_format_duration(left)}")
        before = f" measuring ({', '.join(parts)}) "
        room = self._console.room()
        if room >= len(before) + _MIN_ROOM:
            self._console.show(before + shorten(make_one_line(now.test), room - len(before)))


def _format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
