"""What a process has open, and waiting for processes to be gone."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

DEADLINE = 20.0  # seconds; generous, since a machine may be busy


def alive(pid: int) -> bool:
    """Whether there is such a process; one that is dead and not yet reaped is none."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state not in "ZX"


def survivors(pids: Iterable[int], within: float = DEADLINE) -> list[int]:
    """Which of the processes are still there when all are gone, or at the deadline."""
    until = time.monotonic() + within
    left = [pid for pid in pids if alive(pid)]
    while left and time.monotonic() < until:
        time.sleep(0.01)  # no event tells of the end of a process that is not a child
        left = [pid for pid in left if alive(pid)]
    return left


def open_files() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))
