"""Equal shares of this machine's cores for hosts: one core each, and one weight for all that share a core.

The kernel's cpu controller divides a core among the hosts on it, so other work on a host takes time only from that
host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

_FIRST = Path("/sys/fs/cgroup/cpu")  # cgroups of version 1
_SECOND = Path("/sys/fs/cgroup")
_GONE = 20.0  # seconds, until the kernel has removed the processes of a host


def lacking() -> str:
    """Return why this machine cannot divide its cores among hosts; empty if it can."""
    if shutil.which("taskset") is None:
        return "shares of cores need taskset (package util-linux)"
    folder = _controller()
    return "" if folder is not None and os.access(folder, os.W_OK) else "shares of cores need the cgroup controller cpu"


@contextlib.contextmanager
def share(name: str, number: int) -> Iterator[list[str]]:
    """Makes a share of a core, and removes it once all of its processes have ended.

    Args:
        name: of its group; no other group of the machine has it.
        number: of the host, which chooses the core.

    Yields:
        What a command begins with that runs in this share.
    """
    folder = _controller()
    assert folder is not None, lacking()
    group = folder / name
    group.mkdir()
    cores = sorted(os.sched_getaffinity(0))
    core = cores[(number - 1) % len(cores)]
    try:
        join = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
        yield [*join, "taskset", "--cpu-list", str(core)]
    finally:
        _remove(group)


def _controller() -> Path | None:
    """Return the folder in which groups have shares of the cores; None if there is none."""
    if (_FIRST / "cpu.shares").exists():
        return _FIRST
    with contextlib.suppress(OSError):
        if "cpu" in (_SECOND / "cgroup.subtree_control").read_text().split():
            return _SECOND
    return None


def _remove(group: Path) -> None:
    until = time.monotonic() + _GONE
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)  # cgroups of version 1 tell nobody that they are empty
        else:
            return
