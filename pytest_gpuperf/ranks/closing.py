"""Lets go of closed groups beside the next test, as gloo takes its time to end them. Runs in rank processes.

A group ends when its last reference goes, and whoever drops that waits: gloo's event loop wakes every 10 ms
(gloo/transport/tcp/loop.cc) to see that it is to forget a peer, once for each, and that it is to end. That is 20 ms
with one peer and 40 ms with three, in which nobody computes. The wait does not hold the GIL.
"""

from __future__ import annotations

import threading
from typing import Any

MOST = 2  # tests whose groups are ending at a time: their threads hold memory
_NAME = "gpuperf closing groups"


class Closing:
    """The groups that are ending."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def let_go(self, groups: list[Any]) -> None:
        """Drops the references of this list on a thread of its own; waits first where too many are ending already.

        Work that a program left in a group is waited for, by torch, until its timeout.
        """
        while len(self._threads) >= MOST:
            self._threads.pop(0).join()
        thread = threading.Thread(target=_drop, args=(groups,), name=_NAME, daemon=True)
        thread.start()
        self._threads.append(thread)

    def wait(self) -> None:
        """Returns when all have ended."""
        while self._threads:
            self._threads.pop(0).join()


def await_ended() -> None:
    """Returns when no groups of earlier tests are ending in this process: until then their sockets are open."""
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join()


def _drop(groups: list[Any]) -> None:
    groups.clear()
