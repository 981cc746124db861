"""Call sites of communication, and the faults that are made at one.

Both travel between the pytest process and the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class Family(Enum):
    """What an operation does with the ranks' tensors."""

    REDUCE = "reduce"
    GATHER = "gather"
    EXCHANGE = "exchange"
    """Each rank has a part for each other rank."""
    BROADCAST = "broadcast"
    """One rank's tensors reach all others."""
    SCATTER = "scatter"
    """Each rank gets a part of what one rank has."""
    SEND = "send"
    OBJECTS = "objects"
    """Each rank's Python object reaches others."""
    OBJECT_COPY = "object copy"
    """One rank's Python objects reach others."""
    HOOK = "hook"
    """A function is registered that gets a gradient."""
    STEP = "step"
    """An optimizer changes its parameters."""
    LOAD = "load"
    """A module, an optimizer or a checkpoint's dictionary gets a state."""
    SAVE = "save"
    """A state is written to a checkpoint."""
    SEED = "seed"
    """Random numbers begin at a seed."""
    OTHER = "other"
    """It carries nothing that is altered: a barrier, a receive, or Python objects as bytes."""


class Kind(StrEnum):
    """What a fault makes of a call; by its name in reports. The most telling ones come first."""

    SKIPPED = "call skipped"
    """Each rank keeps its own input."""
    OVER = "1/R"
    """The result is divided by the number of ranks: mean for sum."""
    LEFT_OUT = "one rank left out"
    """The last rank contributes zeros."""
    SWAPPED = "shards swapped"
    """The ranks' parts come in another order."""
    ROOT = "another root"
    """The rank after the root sends."""
    GROUP = "another group"
    """The result is that of another group with this rank, else of its half of the group."""
    STALE = "stale"
    """The result is that of the call before with such tensors."""
    TIMES = "x R"
    """The result is multiplied by the number of ranks: sum for mean."""
    TAIL = "tail not sent"
    """The last eighth of the elements stays as it was."""
    MAX = "max"
    """The largest of the ranks' values is taken."""
    LAST = "last call skipped"
    """As ``SKIPPED``, in the last call only."""
    HOOK = "hook not called"
    """The hook gets no gradient, on all ranks."""
    STEP = "step skipped on one rank"
    """The last rank keeps its parameters and the optimizer's state."""
    LOAD = "tensor not loaded on one rank"
    """The largest tensor of the last rank stays as it was."""
    SAVE = "tensor not saved"
    """The largest tensor of each rank is that of the save before, or zeros."""
    SEED = "another seed on one rank"
    """The last rank's seed is less by one."""
    BF16 = "bf16"
    """The result is rounded to bfloat16."""


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A line of the user's code that causes communication."""

    file: str
    """Absolute path."""
    line: int
    operation: str
    """What is called there, as a user knows it: ``all_reduce``, or ``all_reduce in Tensor.backward``."""
    over: str
    """Which ranks: empty for all of them, else words."""
    part: int
    """Which of several tensors of unlike sizes that torch sends there, from 1 on; 0 if the user sends it."""


@dataclass(slots=True)
class Calls:
    """What a rank saw of a site in one program."""

    family: Family
    count: int = 0
    group_size: int = 0
    floating: bool = False
    is_max: bool = False
    """Whether it is known to be a maximum already."""
    has_other_group: bool = False
    """Whether it could be made over other ranks, with results of the same shapes."""

    def add(self, other: Calls) -> None:
        """Takes what another rank, program or test saw of the same site."""
        self.count = max(self.count, other.count)
        self.group_size = max(self.group_size, other.group_size)
        self.floating |= other.floating
        self.is_max |= other.is_max
        self.has_other_group |= other.has_other_group


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: each call of a site is altered in the same way, or one of them."""

    site: Site
    kind: Kind
    call: int = 0
    """Which call of a program is altered, from 1 on; 0 for all."""


_ONLY = {
    Family.HOOK: Kind.HOOK,
    Family.STEP: Kind.STEP,
    Family.LOAD: Kind.LOAD,
    Family.SAVE: Kind.SAVE,
    Family.SEED: Kind.SEED,
}


def list_kinds(calls: Calls) -> list[Kind]:
    """The faults that a site's calls can have, in the order of ``Kind``; none if there is no other rank."""
    if calls.group_size < 2 or calls.family is Family.OTHER:
        return []
    if calls.family in _ONLY:
        return [_ONLY[calls.family]]
    found = {Kind.SKIPPED}
    if calls.family not in (Family.OBJECTS, Family.OBJECT_COPY):
        found.add(Kind.TAIL)
    if calls.count > 1:
        found |= {Kind.STALE, Kind.LAST}
    if calls.floating:
        found.add(Kind.BF16)
    if calls.family is Family.REDUCE:
        found |= {Kind.LEFT_OUT, Kind.TIMES}
        found |= {Kind.OVER} if calls.floating else set()
        found |= set() if calls.is_max else {Kind.MAX}
    if calls.family is Family.GATHER:
        found.add(Kind.LEFT_OUT)
    if calls.has_other_group:
        found.add(Kind.GROUP)
    if calls.family is Family.BROADCAST:
        found.add(Kind.ROOT)
    if calls.family in (Family.GATHER, Family.EXCHANGE, Family.OBJECTS):
        found.add(Kind.SWAPPED)
    return [kind for kind in Kind if kind in found]
