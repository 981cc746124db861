"""Ranks that wait for a message which nobody sends or takes any more, in a blocking send or receive.

A rank is suspected only if it has been in the same call for the whole grace, and none of its peers can help: each has
returned, or waits in such a call itself, which is not the counterpart. What was sent or posted before arrives within
the grace, unless it is large: such messages are left out, and so are ranks with threads or child processes.
:func:`find_unpaired` runs in the pytest process, :func:`find_passing` on a rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import FrameType

from pytest_gpuperf.ranks.collectives import say_ranks
from pytest_gpuperf.ranks.messages import Account, Passing
from pytest_gpuperf.torch_internals import find_message

_MOST = 64 * 2**20  # bytes, which every network carries within the grace


@dataclass(frozen=True, slots=True)
class Unpaired:
    """Ranks that wait in vain, with what they wait for."""

    waiting: Mapping[int, Passing]
    returned: Collection[int]
    """Ranks that returned from the program."""

    @property
    def rule(self) -> str:
        """What ranks must do."""
        return "Every send needs a receive on its peer, and every receive a send"

    def __str__(self) -> str:
        return "; ".join(self._describe_wait(rank, one) for rank, one in self.waiting.items())

    def _describe_wait(self, rank: int, one: Passing) -> str:
        whom = say_ranks(list(one.peers))
        wanted = f"for {whom} to take a message" if one.sends else f"for a message from {whom}"
        gone = [peer for peer in one.peers if peer in self.returned]
        busy = [peer for peer in one.peers if peer not in self.returned]
        if gone and busy:
            return f"rank {rank} waits {wanted}: {say_ranks(gone)} returned, and {_wait(busy)} in vain, too"
        return f"rank {rank} waits {wanted}, {'which returned' if gone else f'and {_wait(busy)} in vain, too'}"


def _wait(ranks: list[int]) -> str:
    return f"{say_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"


def find_unpaired(
    accounts: Mapping[int, Account], still: Collection[int], returned: Collection[int]
) -> Unpaired | None:
    """Return the ranks whose messages can never pass; None if there is none, or no proof of one.

    Args:
        accounts: what the ranks tell.
        still: ranks that have not moved for long enough, returned ones among them.
        returned: ranks that returned from the program.
    """
    quiet = [rank for rank in still if rank in accounts and not (accounts[rank].threads or accounts[rank].children)]
    gone = {rank for rank in quiet if rank in returned}
    found = {
        rank: one
        for rank in sorted(set(quiet) - set(returned))
        if (one := accounts[rank].passing) is not None and one.peers and one.nbytes <= _MOST
    }
    while helped := [rank for rank, one in found.items() if any(_helps(peer, rank, found, gone) for peer in one.peers)]:
        for rank in helped:
            del found[rank]
    return Unpaired(found, gone) if found else None


def _helps(peer: int, rank: int, waiting: Mapping[int, Passing], gone: Collection[int]) -> bool:
    """Return whether a peer may still send what a rank waits for, or take it."""
    if peer in gone:
        return False
    other = waiting.get(peer)
    return other is None or (rank in other.peers and other.sends != waiting[rank].sends)


def find_passing(frame: FrameType) -> Passing | None:
    """Return the blocking send or receive that a thread is in; None if it is in neither.

    Args:
        frame: the thread's innermost one.
    """
    found = find_message(frame)
    return None if found is None else Passing(*found)
