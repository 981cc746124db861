"""Ranks that wait for a collective which another rank cannot issue any more: no time cures that.

A wrong suspicion would fail a run that only takes long. So a rank is suspected only if all of this holds, and has held
for the whole grace:

- Its main thread is in one and the same call, which waits for a collective, and it has issued nothing new.
- Another rank of that collective's group has returned, has issued nothing new either, and runs no thread of the
  program. Or that rank issued a collective of another kind in its place, or one of tensors of another size.
- The collective needs all ranks of its group, or the group has two.
- The flight recorder holds everything that this conclusion needs.

In any other case the run goes on until its timeout. Runs in the pytest process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from pytest_gpuperf.ranks.collectives import Collective, has_unlike_sizes, say_ranks
from pytest_gpuperf.ranks.knots import Knot, find_vain_waits
from pytest_gpuperf.ranks.messages import Account
from pytest_gpuperf.ranks.openings import Openings, find_differing
from pytest_gpuperf.ranks.unlike import Unlike, find_first_unlike
from pytest_gpuperf.ranks.unpaired import Unpaired, find_unpaired
from pytest_gpuperf.ranks.unserved import Unserved, find_unserved

_MOST_SPARED = 4  # times the grace for which ranks are not asked again for what their recorders hold
SHORTEST = 0.25  # seconds that a rank is watched at least, however short the grace is
_NEEDS_ALL = frozenset({"all_reduce", "barrier", "all_gather", "reduce_scatter"})

Ask = Callable[[Collection[int], bool], Mapping[int, Account]]
"""Asks ranks, if so with what the flight recorder holds; returns the accounts of those that answered."""


@dataclass(frozen=True, slots=True)
class Stalemate:
    """A collective that can never come to its end."""

    collective: Collective
    waiting: tuple[int, ...]
    """The ranks that wait in it."""
    returned: tuple[int, ...]
    """Ranks of its group that returned from the program and never issued it."""
    instead: Mapping[int, Collective]
    """What other ranks of its group issued in its place."""

    @property
    def sizes_differ(self) -> bool:
        """Whether other ranks issued the same collective, of tensors of another size."""
        return any(has_unlike_sizes(self.collective, other) for other in self.instead.values())

    @property
    def rule(self) -> str:
        """What ranks must do."""
        rule = "Every rank of a group must issue each of its collectives, in the same order"
        return f"{rule}, with as many elements" if self.sizes_differ else rule

    def __str__(self) -> str:
        waits = "waits" if len(self.waiting) == 1 else "wait"
        reasons = [f"{say_ranks(self.returned)} returned without it"] if self.returned else []
        said: dict[str, list[int]] = {}
        for rank, collective in self.instead.items():
            said.setdefault(str(collective), []).append(rank)
        reasons += [f"{say_ranks(ranks)} issued {collective} in its place" for collective, ranks in said.items()]
        return f"{say_ranks(self.waiting)} {waits} in {self.collective}; {'; '.join(reasons)}"


def find_stalemate(
    accounts: Mapping[int, Account], still: Collection[int], returned: Collection[int]
) -> Stalemate | None:
    """The first collective that can never come to its end; None if there is none, or no proof of one.

    Args:
        accounts: what the ranks told, with what the flight recorder holds.
        still: ranks that have not moved for long enough, returned ones among them.
        returned: ranks that returned from the program.
    """
    found: dict[_Same, Stalemate] = {}
    for rank in sorted(set(still) - set(returned)):
        account = accounts.get(rank)
        if account is None or not account.waits:
            continue
        for collective in _may_wait_in(account):
            missing, instead = _find_absent(collective, rank, accounts, set(still) & set(returned))
            if missing or instead:
                found.setdefault(_make_key(collective), Stalemate(collective, (rank,), missing, instead))
                break
    first = next(iter(found.values()), None)
    # One is enough to wait for so long; the report is to name those that came later too.
    return None if first is None else replace(first, waiting=_list_waiting(first, accounts, returned))


Hopeless = Stalemate | Unlike | Knot | Openings | Unpaired | Unserved
"""Why a run can never end well."""

_Same = tuple[str, int, str]


def _make_key(collective: Collective) -> _Same:
    return collective.group, collective.number, collective.operation


def _list_waiting(found: Stalemate, accounts: Mapping[int, Account], returned: Collection[int]) -> tuple[int, ...]:
    name, first = found.collective.group, found.waiting[0]
    members = accounts[first].members[name]  # groups of other ranks may have the same name
    others = [
        rank
        for rank in members
        if rank not in (first, *returned)
        and (account := accounts.get(rank)) is not None
        and account.waits
        and account.group_is_the_tests
        and not account.threads
        and account.members.get(name) == members
        and any(_make_key(one) == _make_key(found.collective) for one in _may_wait_in(account))
    ]
    return tuple(sorted([first, *others]))


def _may_wait_in(account: Account) -> list[Collective]:
    issued = account.collectives or []
    if account.tells_ends:
        return [collective for collective in issued if not collective.done]
    return issued[-1:]  # what the main thread issued last is what it waits for, unless the program's own thread issued


def _find_absent(
    collective: Collective, rank: int, accounts: Mapping[int, Account], returned: Collection[int]
) -> tuple[tuple[int, ...], dict[int, Collective]]:
    members = accounts[rank].members.get(collective.group)
    if members is None or accounts[rank].threads or not accounts[rank].group_is_the_tests:
        return (), {}
    kind = _name_kind(collective, accounts[rank].tells_ends)
    missing: list[int] = []
    instead: dict[int, Collective] = {}
    for other in members:
        account = accounts.get(other)
        # A rank that destroyed the group may have made another of its name since.
        if other == rank or account is None or account.members.get(collective.group) != members:
            continue
        everything = account.everything
        if everything is None or not account.group_is_the_tests:
            continue
        own = [one for one in everything if one.group == collective.group]
        same = next((one for one in own if one.number == collective.number), None)
        if same is not None:
            unlike = _name_kind(same, account.tells_ends) != kind or has_unlike_sizes(same, collective)
            if kind in _NEEDS_ALL and unlike:
                instead[other] = same
            continue
        # The recorder drops its oldest entries: the group's last is there if any of them is.
        never = own[-1].number < collective.number if own else account.complete
        if never and other in returned and not account.threads and (kind in _NEEDS_ALL or len(members) == 2):
            missing.append(other)
    return tuple(missing), instead


def _name_kind(collective: Collective, nccl: bool) -> str:
    name = collective.operation.strip("_")
    if "reduce_scatter" in name:
        return "reduce_scatter"
    if name.startswith(("all_gather", "allgather")):
        return "all_gather"
    if name.startswith(("all_reduce", "allreduce")) or (nccl and "barrier" in name):
        return "all_reduce"  # which is what NCCL's barrier is
    return name


def find_hopeless(
    accounts: Mapping[int, Account], still: Collection[int], returned: Collection[int]
) -> Hopeless | None:
    """Why the run can never end well, by the recorders and by what the ranks noted; None if there is no proof of it.

    Args:
        accounts: what the ranks told, with what the flight recorder holds.
        still: ranks that have not moved for long enough, returned ones among them.
        returned: ranks that returned from the program.
    """
    opened = find_differing(accounts)
    if opened is not None:
        return opened
    found = find_stalemate(accounts, still, returned)
    noted = {rank: account.calls for rank, account in accounts.items() if account.calls is not None}
    unlike = find_first_unlike(noted)
    if unlike is not None and (found is None or not unlike.is_at(found.collective)):
        return unlike  # it came first: nothing that a group issues after that can be relied on
    if found is not None:
        return found
    vain = find_vain_waits(accounts, still, returned)
    for wait in vain.values():
        gone = tuple(one for one in wait.absent if one in returned)
        if gone:
            same = [one for one, other in vain.items() if _make_key(other.collective) == _make_key(wait.collective)]
            return Stalemate(wait.collective, tuple(same), gone, {})
    return Knot(vain) if vain else None


def _may_wait(account: Account) -> bool:
    return account.waits or account.threads or account.opening is not None or account.passing is not None


class Vigil:
    """Looks at the ranks of a run now and then."""

    def __init__(self, ask: Ask, grace: float, *, timed: bool) -> None:
        """Begins to watch.

        Args:
            ask: asks ranks for their accounts.
            grace: seconds for which nothing may have moved.
            timed: whether the ranks measure: nobody disturbs them before the first one has returned.
        """
        self._ask = ask
        self._still_for = max(grace, SHORTEST)
        self._pause = self._still_for / 2
        self._timed = timed
        self.due = time.monotonic() + self._pause
        """When to look next, ``time.monotonic``."""
        self._seen: dict[int, tuple[object, float]] = {}
        """What each rank was doing, and since when."""
        self._doubts = 0.0
        """How long to spare the ranks after the recorders showed no stalemate, in seconds."""
        self._spared_until = 0.0
        self._returned = 0

    def look(self, waiting: Collection[int], returned: Collection[int]) -> Hopeless | None:
        """Looks once.

        Args:
            waiting: ranks that have not answered.
            returned: ranks that have.
        """
        self.due = time.monotonic() + self._pause
        if self._timed and not returned:
            return None
        began = time.monotonic()
        if len(returned) != self._returned:
            self._returned, self._doubts, self._spared_until = len(returned), 0.0, 0.0
        accounts = self._ask([*waiting, *returned], False)
        still = self._list_still(accounts, returned, began)
        suspects = [accounts[rank] for rank in still if rank in waiting]
        if began >= self._spared_until and any(_may_wait(account) or account.sought for account in suspects):
            whole = self._ask([*waiting, *returned], True)
            still = self._list_still(whole, returned, began)
            found = (
                find_hopeless(whole, still, returned)
                or find_unpaired(whole, still, returned)
                or find_unserved(whole, still, waiting)
            )
            if found is not None:
                return found
            self._doubts = min(max(2 * self._doubts, self._still_for), _MOST_SPARED * self._still_for)
            self._spared_until = time.monotonic() + self._doubts
        return None

    def _list_still(self, accounts: Mapping[int, Account], returned: Collection[int], now: float) -> list[int]:
        """The ranks that have done nothing for long enough."""
        seen: dict[int, tuple[object, float]] = {}
        for rank, account in accounts.items():
            doing = (rank in returned, None if rank in returned else account.position, account.issued)
            before = self._seen.get(rank)
            seen[rank] = before if before is not None and before[0] == doing else (doing, now)
        self._seen = seen
        return [rank for rank, (_, since) in seen.items() if now - since >= self._still_for - self._pause / 2]
