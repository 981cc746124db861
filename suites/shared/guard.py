"""Runs a command and leaves none of its processes behind: ``python guard.py COMMAND...``, a process of its own.

torchrun starts each worker in a session of its own, so no signal to a process group reaches all of them. The guard
adopts every process that loses its parent. It ends them all when the command has ended, or when its standard input
closes: then the test is over, or its process is dead. Its standard output has one line, the command's process id.
It uses the standard library only, so that it starts in some hundredths of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_BY_A_SIGNAL = 128  # a shell's exit status of a command that a signal ended: this and the signal's number


def _main(command: Sequence[str]) -> int:
    """Returns the command's exit status, as a shell has it."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())
    print(child.pid, flush=True)
    ended = os.pidfd_open(child.pid)
    select.select([ended, sys.stdin.fileno()], [], [])
    status = child.poll()
    _end_all()
    if status is None:
        return _BY_A_SIGNAL + signal.SIGKILL
    return status if status >= 0 else _BY_A_SIGNAL - status


def _end_all() -> None:
    """Kills all children until there are none: a killed child's own children become this process's."""
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _children() -> Iterator[int]:
    for name in os.listdir("/proc"):
        # A process may end while its file is read.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if name.isdigit() and _parent(int(name)) == os.getpid():
                yield int(name)


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The name in parentheses may hold anything; the state and the parent's id follow it.
        return int(file.read().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
