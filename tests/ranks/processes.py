"""What a process has open, and waiting for processes to be gone."""

import os
import time
from collections.abc import Iterable
from multiprocessing.connection import wait

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


def open_files() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))
