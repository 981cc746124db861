"""Whose the processes on the GPUs are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pytest_gpuperf.features.doctor.facts import ProcessFacts
from pytest_gpuperf.features.doctor.readers.text import read

_MOST_ANCESTORS = 64


def read_processes(root: Path, pids: Iterable[int], own: int | None = None) -> tuple[ProcessFacts, ...]:
    """Describes the processes that are visible here; the others are left out.

    Args:
        root: Where proc is.
        pids: Process ids as the driver counts them, which in a container may be others than here.
        own: This process's id; the children of this process are its own, too.
    """
    mine = os.getpid() if own is None else own
    found = []
    for pid in sorted(set(pids)):
        command = read(root / f"proc/{pid}/comm")
        if command is not None:
            found.append(ProcessFacts(pid, command, _descends(root, pid, mine)))
    return tuple(found)


def _descends(root: Path, pid: int, ancestor: int) -> bool:
    for _ in range(_MOST_ANCESTORS):
        if pid == ancestor:
            return True
        # Field 4 of /proc/pid/stat, behind a command in parentheses that may hold anything.
        fields = (read(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()
        if len(fields) < 2 or not fields[1].isdigit() or int(fields[1]) <= 1:
            return False
        pid = int(fields[1])
    return False
