"""Lets go of closed groups beside the next test, as gloo takes its time to end them. Runs in rank processes.

A group ends when its last reference goes, and whoever drops that waits: gloo's event loop wakes every 10 ms
(gloo/transport/tcp/loop.cc) to see that it is to forget a peer, once for each, and that it is to end. That is 20 ms
with one peer and 40 ms with three, in which nobody computes. The wait does not hold the GIL.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from typing import Any

MOST = 2  # tests whose groups are ending at a time: their threads hold memory
_closings: weakref.WeakSet[Closing] = weakref.WeakSet()
"""Of this process."""


class Closing:
    """The groups that are ending."""

    def __init__(self) -> None:
        self._ending: list[threading.Event] = []
        """Each is set once the groups that were let go together have ended."""
        _closings.add(self)

    def let_go(self, groups: list[Any]) -> None:
        """Drops the references of this list on a thread of its own; waits first where too many are ending already.

        The thread is none that ``threading`` knows: a program that counts or names its threads does not find it.
        Work that a program left in a group is waited for, by torch, until its timeout.
        """
        while len(self._ending) >= MOST:
            self._ending.pop(0).wait()
        ended = threading.Event()
        _thread.start_new_thread(_drop, (groups, ended))
        self._ending.append(ended)

    def wait(self) -> None:
        """Returns when all have ended."""
        while self._ending:
            self._ending.pop(0).wait()


def await_ended() -> None:
    """Returns when no groups of earlier tests are ending in this process: until then their sockets are open."""
    for closing in list(_closings):
        closing.wait()


def _drop(groups: list[Any], ended: threading.Event) -> None:
    groups.clear()
    ended.set()
