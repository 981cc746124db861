"""Ranks that wait for each other in collectives of several groups, and for ranks that have returned.

It takes what each rank itself noted, and so knows the groups, the places and the order of all collectives. A rank is
held to wait in vain only if everybody whom it needs has returned, or waits in vain itself. Runs in the pytest process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pytest_gpuperf.ranks.collectives import Collective, say_group, say_ranks
from pytest_gpuperf.ranks.messages import Account
from pytest_gpuperf.ranks.unlike import describe_place

_FROM_THE_ROOT = ("broadcast", "scatter")
_TO_THE_ROOT = ("reduce", "gather")


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits in vain."""

    collective: Collective
    absent: tuple[int, ...]
    """Ranks that it needs, and that have not issued the collective."""


@dataclass(frozen=True, slots=True)
class Knot:
    """Ranks of which each waits for another one."""

    waits: Mapping[int, Wait]

    @property
    def crossed(self) -> tuple[int, int] | None:
        """Two ranks of both of two groups that wait for each other; None if the circle is longer."""
        for one, wait in self.waits.items():
            for other in wait.absent:
                back = self.waits[other]
                if one in back.absent and _group(back) != _group(wait):
                    return one, other
        return None

    @property
    def rule(self) -> str:
        """What ranks must do."""
        return "Ranks that share several groups must enter them in one order"

    def __str__(self) -> str:
        crossed = self.crossed
        ranks = sorted(self.waits) if crossed is None else crossed
        said = "; ".join(
            f"rank {rank} waits for {say_ranks(self.waits[rank].absent)} in {wait} on "
            f"{say_group(wait)}{f', at {describe_place(wait)}' if wait.place else ''}"
            for rank in ranks
            for wait in [self.waits[rank].collective]
        )
        if crossed is None:
            return f"{say_ranks(ranks)} wait for each other: {said}"
        first, second = (say_group(self.waits[rank].collective) for rank in crossed)
        return f"{first} and {second} were entered in different orders: {said}"


def _group(wait: Wait) -> tuple[str, tuple[int, ...]]:
    return wait.collective.group, wait.collective.members


def find_vain_waits(
    accounts: Mapping[int, Account], still: Collection[int], returned: Collection[int]
) -> dict[int, Wait]:
    """The ranks that wait for what can never come, by what is known for certain.

    Args:
        accounts: what the ranks told, with what they noted.
        still: ranks that have not moved for long enough, returned ones among them.
        returned: ranks that returned from the program.
    """
    counts: dict[tuple[int, str, tuple[int, ...]], int] = {}
    for rank, account in accounts.items():
        for call in account.calls or ():
            counts[rank, call.group, call.members] = call.number
    finished = {rank for rank in set(still) & set(returned) if _tells(accounts.get(rank))}
    waits: dict[int, Wait] = {}
    for rank in sorted(set(still) - set(returned)):
        told = accounts.get(rank)
        if told is None or not _tells(told) or not told.waits or not told.calls:
            continue
        call = told.calls[-1]
        missing = [one for one in call.members if counts.get((one, call.group, call.members), 0) < call.number]
        needed = _list_needed(call, rank, missing, finished)
        if needed:
            waits[rank] = Wait(call, needed)
    while True:  # who waits for a rank that may still move is none of them
        vain = {
            rank: wait for rank, wait in waits.items() if all(one in waits or one in finished for one in wait.absent)
        }
        if len(vain) == len(waits):
            return vain
        waits = vain


def _tells(account: Account | None) -> bool:
    # What the program's own threads will issue nobody knows. With NCCL the host does not wait where it issues.
    # Without the last ones of very many, nobody knows what a rank waits in.
    known = account is not None and account.calls is not None and account.complete
    return account is not None and known and not account.threads and not account.tells_ends


def _list_needed(call: Collective, rank: int, missing: Collection[int], finished: Collection[int]) -> tuple[int, ...]:
    if all(one in finished for one in missing) or len(call.members) == 2:
        return tuple(missing)
    root = call.members[call.root] if 0 <= call.root < len(call.members) else -1
    if call.operation in _FROM_THE_ROOT or (call.operation in _TO_THE_ROOT and rank != root):
        # A relay may be among the missing ones, or not: only the root is needed for certain.
        return (root,) if call.operation in _FROM_THE_ROOT and root in missing else ()
    return tuple(missing)
