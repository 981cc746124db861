"""Collectives that the ranks of a group issued together, and to which they passed what does not fit together.

A backend need not notice: gloo sums float32 and int32 as they lie in memory. Runs in the pytest process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.ranks.collectives import Collective, say_group, say_ranks
from pytest_gpuperf.ranks.endings import Answered, Ending
from pytest_gpuperf.ranks.messages import Tally

_SAME = {
    "operation": "Every rank of a group must issue each of its collectives, in the same order",
    "types": "All ranks of a group must pass the same dtype",
    "elements": "All ranks of a group must pass as many elements",
    "reduction": "All ranks of a group must ask for the same reduction",
    "root": "All ranks of a group must name the same root",
}
_PAIRS = "A rank must send another as many elements as that one expects of it"

Key = tuple[str, tuple[int, ...]]
"""A group: its name and its global ranks. Groups of other ranks may have the same name."""


@dataclass(frozen=True, slots=True)
class Unlike:
    """A collective to which ranks passed what does not fit together."""

    issued: Mapping[int, Collective]
    """As each rank of the group that issued it did."""
    said: str
    """What each rank passed, or what two ranks expected of each other."""
    rule: str
    """What ranks must do."""

    def __str__(self) -> str:
        return f"the ranks passed unlike arguments to {self.what}: {self.said}"

    def is_at(self, one: Collective) -> bool:
        """Whether this is about that collective."""
        return any((own.group, own.number) == (one.group, one.number) for own in self.issued.values())

    @property
    def what(self) -> str:
        """The collective: ``all_reduce, collective 2 of the program``."""
        one = next(iter(self.issued.values()))
        kinds = list(dict.fromkeys(each.operation for each in self.issued.values()))
        return f"{' and '.join(kinds)}, collective {one.number} of the program{_describe_group(one)}"

    @property
    def places(self) -> list[str]:
        """The lines of the program that issued it, ranks of the same one together."""
        return list_places(self.issued)


def has_unlike_tallies(endings: Sequence[Ending]) -> bool:
    """Whether ranks may have issued what does not fit together; False unless all of them returned with tallies."""
    tallies = [ending.tallies if isinstance(ending, Answered) else None for ending in endings]
    if any(some is None for some in tallies):
        return False
    groups: dict[Key, list[Tally]] = {}
    for some in tallies:
        for tally in some or ():
            groups.setdefault((tally.group, tally.members), []).append(tally)
    return any(
        len(told) != len(members)
        or len({(one.count, one.digest) for one in told}) > 1
        or sum(one.balance for one in told) != 0
        for (_, members), told in groups.items()
        if all(member < len(tallies) for member in members)
    )


def find_first_unlike(calls: Mapping[int, Sequence[Collective]]) -> Unlike | None:
    """The first collective to which ranks passed what does not fit together; None if there is none.

    Args:
        calls: of each rank, as it noted them, in the order of issue.
    """
    for key, lists in group_calls(calls).items():
        for number in range(max(map(len, lists.values()))):
            issued = {rank: own[number] for rank, own in lists.items() if number < len(own)}
            found = _compare(issued, key)
            if found is not None:
                return found
    return None


def group_calls(calls: Mapping[int, Sequence[Collective]]) -> dict[Key, dict[int, list[Collective]]]:
    """The collectives of each rank on each group, groups in the order in which the first rank used them."""
    groups: dict[Key, dict[int, list[Collective]]] = {}
    for rank in sorted(calls):
        for call in calls[rank]:
            groups.setdefault((call.group, call.members), {}).setdefault(rank, []).append(call)
    return groups


def list_places(issued: Mapping[int, Collective]) -> list[str]:
    """``rank 1 issued it at test_x.py:12 in program``, ranks of the same line and thread together."""
    return [
        f"{say_ranks(ranks)} issued it at {place}"
        for place, ranks in _collect_ranks((rank, describe_place(one)) for rank, one in issued.items())
        if place
    ]


def describe_place(one: Collective) -> str:
    """The line of the program, and its thread unless that is the main one."""
    return one.place + (f", in its thread {one.thread}" if one.thread else "")


def list_shared_groups(calls: Mapping[int, Sequence[Collective]]) -> list[str]:
    """The groups on which several threads of a rank issue: which of them comes first may differ from rank to rank."""
    said: dict[str, list[int]] = {}
    for (name, members), lists in group_calls(calls).items():
        for rank, own in lists.items():
            threads = list(dict.fromkeys(one.thread for one in own))
            if len(threads) > 1:
                names = " and ".join(f"its thread {thread}" if thread else "its main thread" for thread in threads)
                said.setdefault(f"on group {name} ({say_ranks(members)}): {names}", []).append(rank)
    return [
        f"{say_ranks(ranks)} issue{'s' if len(ranks) == 1 else ''} from several threads {what}. Which comes first may "
        "differ from rank to rank: give each thread a group of its own"
        for what, ranks in said.items()
    ]


def _compare(issued: Mapping[int, Collective], key: Key) -> Unlike | None:
    difference = _find_difference(list(issued.values()))
    if difference:
        said = [f"{say_ranks(ranks)} passed {what}" for what, ranks in _collect_ranks(_show(issued, difference))]
        return Unlike(issued, "; ".join(said), _SAME[difference])
    members = key[1]
    moving = {rank: one for rank, one in issued.items() if one.sends or one.receives}  # the others' calls were refused
    for sender, sent in moving.items():
        for receiver, got in moving.items():
            to, of = members.index(receiver), members.index(sender)
            given = sent.sends[to] if sent.sends else 0
            expected = got.receives[of] if got.receives else 0
            if given != expected:
                whom = "itself, and" if sender == receiver else f"rank {receiver}, which"
                return Unlike(
                    issued, f"rank {sender} sends {_format_elements(given)} to {whom} expects {expected}", _PAIRS
                )
    return None


def _find_difference(issued: Sequence[Collective]) -> str:
    """What differs, as the field's name; empty if nothing does."""
    for name in _SAME:
        values = {getattr(one, name) for one in issued}
        if name == "reduction":
            values.discard("")  # not known
        if len(values) > 1:
            return name
    return ""


def _show(issued: Mapping[int, Collective], difference: str) -> Iterable[tuple[int, str]]:
    for rank, one in issued.items():
        match difference:
            case "operation":
                yield rank, str(one)
            case "reduction":
                yield rank, one.reduction or "a reduction that is not known"
            case "root":
                yield rank, f"root {one.members[one.root] if 0 <= one.root < len(one.members) else one.root}"
            case _:
                yield rank, one.tensors or "nothing"


def _collect_ranks(told: Iterable[tuple[int, str]]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for rank, what in told:
        found.setdefault(what, []).append(rank)
    return list(found.items())


def _format_elements(count: int) -> str:
    return f"{count} element{'' if count == 1 else 's'}"


def _describe_group(one: Collective) -> str:
    return f" on {say_group(one)}"
