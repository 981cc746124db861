"""The line that is shown while perf tests measure."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.report.console import Console
from pytest_gpuperf.report.progress import Measuring, Progress
from tests.whole_run import environment, run_on_terminal, write


class Shown:
    """A console that keeps what it shows."""

    def __init__(self, room: int = 60) -> None:
        self._room = room
        self.texts: list[str] = []
        self.wiped = 0

    def room(self) -> int:
        return self._room

    def show(self, text: str) -> None:
        self.texts.append(text)

    def wipe(self) -> None:
        self.wiped += 1


class Watch:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def item(nodeid: str) -> pytest.Item:
    return cast(pytest.Item, SimpleNamespace(nodeid=nodeid))


def planned(items: Sequence[Any]) -> Mapping[str, Measuring]:
    # "a#2" is the second launch of "a"; "x" is no perf test.
    return {
        item.nodeid: Measuring(item.nodeid.partition("#")[0], int(item.nodeid.partition("#")[2] or 1))
        for item in items
        if item.nodeid != "x"
    }


class Run:
    """A run whose tests take as long as they are said to."""

    def __init__(self, *nodeids: str, launches: int = 1, room: int = 60) -> None:
        self.shown, self.watch = Shown(room), Watch()
        self.progress = Progress(cast(Console, self.shown), launches, planned, self.watch)
        session = SimpleNamespace(items=[item(nodeid) for nodeid in nodeids])
        self.progress.pytest_collection_finish(cast(pytest.Session, session))

    def test(self, nodeid: str, seconds: float) -> list[str]:
        """Runs a test; what was shown meanwhile."""
        begun = len(self.shown.texts)
        self.progress.pytest_runtest_logstart()
        self.progress.pytest_runtest_setup(item(nodeid))
        self.progress.pytest_runtest_logreport()
        self.progress.pytest_runtest_call(item(nodeid))
        self.watch.now += seconds
        self.progress.pytest_runtest_logreport()
        self.progress.pytest_runtest_teardown(item(nodeid))
        return self.shown.texts[begun:]


def test_a_recording_tells_test_launch_and_how_long_still() -> None:
    run = Run("x", "a", "b", "a#2", "b#2", "a#3", "b#3", launches=3, room=100)
    assert run.test("x", 1000) == []
    assert run.test("a", 60) == [" measuring (launch 1 of 3, 6 to go) a"] * 2
    assert run.test("b", 300) == [" measuring (launch 1 of 3, 5 to go, about 5 min) b"] * 2  # as if all were like a
    assert run.test("a#2", 120)[0] == " measuring (launch 2 of 3, 4 to go, about 12 min) a"  # 2 x (1 + 5) min
    assert run.test("b#2", 300)[0] == " measuring (launch 2 of 3, 3 to go, about 12 min) b"  # 5 + 1.5 + 5 min
    assert run.progress.estimate_seconds_left() == 90 + 300


def test_whatever_pytest_prints_wipes_it() -> None:
    run = Run("a")
    run.test("a", 1)
    assert run.shown.wiped == 3
    run.progress.pytest_keyboard_interrupt()
    assert run.shown.wiped == 4


@pytest.mark.parametrize(("seconds", "told"), [(0.2, "1 s"), (59, "59 s"), (90, "2 min"), (7290, "2 h 02 min")])
def test_times_are_told_as_people_do(seconds: float, told: str) -> None:
    run = Run("a", "b")
    run.test("a", seconds)
    assert run.test("b", 1)[0] == f" measuring (1 to go, about {told}) b"


def test_a_long_name_is_shortened_and_a_narrow_terminal_left_alone() -> None:
    name = "suites/collectives/test_performance.py::test_all_reduce"
    (text, _) = Run(name, room=60).test(name, 1)
    assert text == " measuring (1 to go) suites/collectives...y::test_all_reduce"
    assert len(text) <= 60
    assert Run(name, room=40).test(name, 1) == []


TESTS = """
import pytest
from pytest_gpuperf import Metric

@pytest.mark.perf
@pytest.mark.ranks(1)
@pytest.mark.parametrize("n", range(2))
def test_speed(perf, n):
    perf.check(time=Metric(1.0, "s", "lower"))
"""


@pytest.mark.parametrize("arguments", [(), ("-n1",)])
def test_on_a_real_terminal_it_comes_and_goes(tmp_path: Any, arguments: tuple[str, ...]) -> None:
    write(tmp_path, {"test_it.py": TESTS, "pytest.ini": f"[pytest]\ngpuperf_leases = {tmp_path / '.leases'}\n"})
    text = run_on_terminal(tmp_path, "--smoke", *arguments, env=environment(TERM="xterm", COLUMNS="100"))
    assert "2 passed" in text
    lines = text.count("\x1b7")
    assert lines == text.count("\x1b8\x1b[K")
    if arguments:
        assert lines == 0
        return
    assert lines == 4
    assert "\x1b7 measuring (2 to go) test_it.py::test_speed[1rank-0]\x1b8\x1b[K" in text
    assert "\x1b7 measuring (1 to go, about " in text
