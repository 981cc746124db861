"""Ranks that open different groups at one call of ``new_group``. Runs in the pytest process.

Torch numbers the groups that a rank opens. A rank waits in ``new_group`` for the ranks that it named, and these may
have given the number to another group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.ranks.collectives import say_ranks
from pytest_gpuperf.ranks.messages import Account


@dataclass(frozen=True, slots=True)
class Openings:
    """A group that is not the same one to all of its ranks."""

    name: str
    lists: Mapping[int, tuple[int, ...]]
    """What each rank passed; nothing is known of a rank that is in none of them."""

    @property
    def rule(self) -> str:
        """What ranks must do."""
        return (
            "Every rank must call new_group for each group, with the same list and in the same order, also for those "
            "that it is not in"
        )

    def __str__(self) -> str:
        said: dict[tuple[int, ...], list[int]] = {}
        for rank, members in self.lists.items():
            said.setdefault(members, []).append(rank)
        lists = "; ".join(f"{say_ranks(ranks)} passed {_list(members)}" for members, ranks in said.items())
        return f"the ranks passed different lists to new_group for group {self.name}: {lists}"


def find_differing(accounts: Mapping[int, Account]) -> Openings | None:
    """The first group that its ranks opened with different lists; None if there is none.

    Args:
        accounts: what the ranks told.
    """
    opened = {rank: _list_opened(account) for rank, account in sorted(accounts.items()) if account.group_is_the_tests}
    for groups in opened.values():
        for name, members in sorted(groups.items()):
            # Groups of other ranks may have the same name; a rank that is named here must have the same group.
            others = {other: opened[other][name] for other in members if name in opened.get(other, {})}
            if any(list_ != members for list_ in others.values()):
                return Openings(name, dict(sorted(others.items())))
    return None


def _list_opened(account: Account) -> dict[str, tuple[int, ...]]:
    opening = () if account.opening is None else (account.opening,)
    return {**account.members, **dict(opening)}


def _list(members: Sequence[int]) -> str:
    return str(list(members))
