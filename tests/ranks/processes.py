"""What a process has open, waiting for processes to be gone, and a process that may be killed with all it started."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path

from tests.whole_run import environment

DEADLINE = 20.0  # seconds; generous, since a machine may be busy


def alive(pid: int) -> bool:
    """Whether there is such a process; one that is dead and not yet reaped is none."""
    return not _ends(pid, within=0.0)


def survivors(pids: Iterable[int], within: float = DEADLINE) -> list[int]:
    """Which of the processes are still there when all are gone, or at the deadline."""
    until = time.monotonic() + within
    return [pid for pid in pids if not _ends(pid, max(0.0, until - time.monotonic()))]


def _ends(pid: int, within: float) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(wait([process], within))
    finally:
        os.close(process)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have, as far as they have not ended."""
    found = []
    for thread in _list_or_nothing(f"/proc/{pid}/task"):
        with suppress(OSError):  # it ends meanwhile
            for child in map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def _list_or_nothing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def open_files() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def owner_of(source: str) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A process that runs this source, and the ids of what it has started, which it prints on one line."""
    with subprocess.Popen(
        [sys.executable, "-c", source], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        yield owner, [int(word) for word in owner.stdout.readline().split()]
