"""Questions to the ranks' second threads: what each rank is doing, and which collectives it has issued."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import wait

from pytest_gpuperf.ranks.collectives import Collective
from pytest_gpuperf.ranks.messages import Account, Inquiry
from pytest_gpuperf.ranks.process import RankProcess

_RECORDER_TIMEOUT = 1.0  # seconds; a rank that holds the GIL cannot tell its collectives
_LOOK_TIMEOUT = 0.1  # seconds, for an account without the recorder


def collect_issued(accounts: Mapping[int, Account]) -> tuple[dict[int, list[Collective]], dict[str, Sequence[int]]]:
    """The collectives of each rank whose account has them, and the members of all groups, by name."""
    issued: dict[int, list[Collective]] = {}
    groups: dict[str, Sequence[int]] = {}
    for rank, account in sorted(accounts.items()):
        groups.update(account.members)
        if account.collectives is not None:
            issued[rank] = account.collectives
    return issued, groups


def collect_noted(accounts: Mapping[int, Account]) -> dict[int, list[Collective]]:
    """The collectives of each rank that has noted its own."""
    return {rank: account.calls for rank, account in sorted(accounts.items()) if account.calls is not None}


class Inquiries:
    """Asks the ranks that this machine has of one pool."""

    def __init__(self, processes: Mapping[int, RankProcess]) -> None:
        """Has asked nothing yet; ``processes`` are by rank, and may still be added."""
        self._processes = processes
        self._count = 0

    def ask(self, ranks: Iterable[int], *, whole: bool) -> Callable[[], dict[int, Account]]:
        """Asks these ranks; what it returns waits for the accounts of those that answer in time.

        Args:
            ranks: to ask.
            whole: whether with what their flight recorders hold, which takes longer.
        """
        self._count += 1
        asked: dict[int, int] = {}  # by file descriptor
        for rank in ranks:
            with contextlib.suppress(OSError):
                self._processes[rank].inquiries.send(Inquiry(self._count, whole))
                asked[self._processes[rank].inquiries.fileno()] = rank
        deadline = time.monotonic() + (_RECORDER_TIMEOUT if whole else _LOOK_TIMEOUT)
        return lambda: self._collect(asked, deadline)

    def _collect(self, asked: dict[int, int], deadline: float) -> dict[int, Account]:
        accounts: dict[int, Account] = {}
        while asked and (ready := wait(list(asked), timeout=max(0.0, deadline - time.monotonic()))):
            for fd in ready:
                assert isinstance(fd, int)
                try:
                    account, _ = self._processes[asked[fd]].inquiries.receive()
                except (EOFError, OSError):
                    del asked[fd]
                    continue
                if account.number == self._count:  # else it comes late, and answers an earlier one
                    accounts[asked.pop(fd)] = account
        return accounts
