"""Which processes descend from a process: its children, and whatever they leave behind when they end.

A process that starts a session of its own leaves its parent's process group, so a signal to the group misses it. It
keeps its line of descent: when its parent ends, the nearest ancestor that adopts orphans becomes its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

MARK = "GPUPERF_FORKSERVER"
"""Variable that a forkserver and all that descends from it inherit: the names of the forkservers above them."""
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def list_children() -> list[int]:
    """Process ids of this process's children, of all threads; those that ended and are not reaped among them."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except FileNotFoundError:  # the thread has ended, or the kernel was built without this file
            if task.name == str(os.getpid()):
                return _list_by_parent()
        except OSError:
            continue
    return found


def kill_marked(mark: str) -> None:
    """Kills the processes whose environment has this mark, for when nobody is left that adopted them.

    A process that was started with an empty environment, or by another user, is not found.

    Args:
        mark: what ``MARK`` contains in their environment.
    """
    wanted = f"{MARK}=".encode()
    for pid in _iterate_processes():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if pid != os.getpid() and any(one.startswith(wanted) and mark.encode() in one for one in variables):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _list_by_parent() -> list[int]:
    return [pid for pid in _iterate_processes() if _read_parent(pid) == os.getpid()]


def _iterate_processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _read_parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
