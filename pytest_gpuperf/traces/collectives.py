"""Which slices of several ranks are one collective.

The k-th collective of a process group on one rank is the k-th of that group on each other rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_gpuperf.traces.events import GLOO, RankEvents, Slice
from pytest_gpuperf.traces.rank_trace import Issued


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part in a collective."""

    rank: int
    slice: Slice


@dataclass(slots=True)
class Collectives:
    """Gathers the parts of all ranks."""

    _parts: dict[Hashable, list[Part]] = field(default_factory=lambda: defaultdict(list))

    def add(self, events: RankEvents, issued: Sequence[Issued]) -> None:
        """Take note of one rank's collectives.

        Args:
            events: the rank's.
            issued: with gloo, what the rank issued.
        """
        found = _find_gloo_events(events, issued) if issued else _find_nccl_kernels(events)
        for key, one in found.items():
            self._parts[key].append(Part(events.rank, one))

    def tie(self) -> list[list[Part]]:
        """Return the collectives that two ranks or more took part in, each from the first part to the last."""
        found = [sorted(parts, key=lambda part: part.slice.start) for parts in self._parts.values() if len(parts) > 1]
        return sorted(found, key=lambda parts: parts[0].slice.start)


def _find_nccl_kernels(events: RankEvents) -> Mapping[Hashable, Slice]:
    """Return the kernels that torch names a collective on, by group and place; Kineto copies that from the operator."""
    counts: Counter[Hashable] = Counter()
    found: dict[Hashable, Slice] = {}
    for one in events.slices:
        if one.category != "kernel" or "Collective name" not in one.args:
            continue
        group: Hashable = one.args.get("Process Group Name"), str(one.args.get("Process Group Ranks"))
        operation = str(one.args["Collective name"])
        if operation in ("send", "recv"):
            ends = one.args.get("Src Rank"), one.args.get("Dst Rank")
            if None in ends:
                continue  # which rank the other end is on, nobody says
            group = group, ends
        found[group, counts[group]] = one
        counts[group] += 1
    return found


def _find_gloo_events(events: RankEvents, issued: Sequence[Issued]) -> Mapping[Hashable, Slice]:
    """Return gloo's events by group and place, as the flight recorder has them.

    Gloo starts operations in the order of issue, so the k-th event of a name is the k-th entry of that name. If there
    are not as many entries as events, some are lost, and nothing of that name is tied.
    """
    ran: dict[str, list[Slice]] = defaultdict(list)
    entries: dict[str, list[Issued]] = defaultdict(list)
    for one in events.slices:
        if one.name.startswith(GLOO):
            ran[one.name].append(one)
    for entry in issued:
        entries[entry.name].append(entry)
    return {
        (entry.group, entry.sequence): one
        for name, slices in ran.items()
        if len(slices) == len(entries[name])
        for entry, one in zip(entries[name], slices, strict=True)
    }
