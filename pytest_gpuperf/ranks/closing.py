"""Ends groups side by side, as NCCL and gloo take their time for it. Runs in rank processes.

**NCCL.** A communicator takes up to half a second to end: a thread of it looks that often whether it may
(ncclProxyServiceUDS in NCCL's src/proxy.cc). torch ends one after the other.

**gloo.** A group ends when its last reference goes, and whoever drops that waits: gloo's event loop wakes every 10 ms
(gloo/transport/tcp/loop.cc) to see that it is to forget a peer, once for each, and that it is to end. That is 20 ms
with one peer and 40 ms with three, in which nobody computes. The wait does not hold the GIL.

A thread of the group itself may hold a reference: it ran the function that a program gave to ``Future.then``, as a
communication hook of DDP does, and needs the GIL to forget it. Were that the last one, the thread would wait for its
own end, and C++ would end the process by SIGABRT ("Resource deadlock avoided"; torch 2.13).
"""

from __future__ import annotations

import _thread
import gc
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

MOST = 2  # tests whose groups are ending at a time: their threads hold memory
PATIENCE = 10.0  # seconds; a hundred groups with seven peers each take 6
HELD = 1.0  # seconds; a full collection, in which a group's thread waits for the GIL, takes a tenth
POLL = 0.001  # seconds


class Group(Protocol):
    """A process group, as far as its end goes."""

    def shutdown(self) -> None:
        """Ends its communicators; without effect if they have ended."""


def shut_down(groups: Sequence[Group]) -> None:
    """Ends the communicators of all groups in the time of one; ``destroy_process_group`` has little to do then.

    torch itself waits for the hooks of a group first, where a program has registered some; here that comes after it.

    Raises:
        Exception: What the first group raised that could not end. The others have been told to end too.
    """
    if len(groups) > 1:
        with ThreadPoolExecutor(len(groups), "closing") as threads:
            for ending in [threads.submit(group.shutdown) for group in groups]:
                ending.result()


class Closing:
    """The groups that are ending."""

    def __init__(self) -> None:
        self._ending: list[threading.Event] = []
        """Each is set once the groups that were let go together have ended."""

    def let_go(self, groups: list[Any], *, patience: float = PATIENCE) -> None:
        """Drops the references of this list on a thread of its own; waits first where too many are ending already.

        The thread is none that ``threading`` knows: a program that counts or names its threads does not find it.

        Args:
            groups: process groups; the list is empty once they have ended.
            patience: seconds to wait for earlier ones.

        Raises:
            TimeoutError: earlier ones do not end, as torch waits for work that a program left in them.
        """
        while len(self._ending) >= MOST:
            if not self._ending[0].wait(patience):
                raise TimeoutError(
                    f"process groups of an earlier test have not ended within {patience:g} s: its program left work in "
                    "them that cannot end. Wait for all work in the program"
                )
            del self._ending[0]
        ended = threading.Event()
        _thread.start_new_thread(_drop, (groups, ended))
        self._ending.append(ended)

    def wait(self) -> None:
        """Returns when all have ended."""
        while self._ending:
            self._ending.pop(0).wait()


def await_ended() -> None:
    """Returns when no groups of earlier tests are ending in this process: until then their sockets are open."""
    for found in gc.get_objects():
        if type(found) is Closing:
            found.wait()


def _drop(groups: list[Any], ended: threading.Event) -> None:
    alone = [object()]
    until = time.monotonic() + HELD  # a program's global may hold a group for ever
    while groups and time.monotonic() < until:
        for index in reversed(range(len(groups))):
            if sys.getrefcount(groups[index]) == sys.getrefcount(alone[0]):
                del groups[index]
        if groups:
            time.sleep(POLL)
    groups.clear()
    ended.set()
