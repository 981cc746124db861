"""A process's children, and what is found by its environment."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_gpuperf.ranks import descent
from tests.ranks.processes import survivors

WAITS = "import sys; sys.stdin.read()"


@contextmanager
def process(**variables: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, env={**os.environ, **variables}
    ) as started:
        yield started
        started.kill()


@pytest.mark.parametrize("by", [descent.list_children, descent._list_by_parent])
def test_children_are_found_with_the_kernels_list_and_without_it(by: object) -> None:
    assert callable(by)
    found: list[int] = []

    def start() -> None:
        with process() as child:
            found.append(child.pid)
            found.extend(by())

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert found[0] in found[1:]
    assert os.getpid() not in found
    assert found[0] not in by()


def test_only_processes_with_the_mark_are_killed() -> None:
    with (
        process(**{descent.MARK: "/outer/this"}) as marked,
        process(**{descent.MARK: "/other"}) as other,
        process(ELSEWHERE="/outer/this") as elsewhere,
    ):
        descent.kill_marked("this")
        assert survivors([marked.pid]) == []
        assert survivors([other.pid, elsewhere.pid], within=0.2) == [other.pid, elsewhere.pid]
