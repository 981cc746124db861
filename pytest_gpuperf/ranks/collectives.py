"""The collectives that ranks issued in a run, and where they part: read from torch's flight recorder.

The recorder is c10d's own (``TORCH_FR_BUFFER_SIZE`` entries a process, on by default, for gloo and NCCL).
Only plain containers of it come here; this module loads no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuperf.torch_internals import SAME_ON_ALL_RANKS

PAIRED = ("gather", "scatter", "all_to_all")
"""Collectives that move elements between pairs of ranks, and not as many on every rank."""

_SHAPE = re.compile(r"\[([\d, ]*)\]")


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as a rank issued it."""

    group: str
    """The process group's name."""
    number: int
    """Its place among the group's collectives since the group was opened, counted from 1."""
    operation: str
    """As torch names it, without the backend: ``all_reduce``, ``broadcast``."""
    tensors: str
    """Types and shapes of its inputs: ``Float[4]``."""
    done: bool
    """Whether it came to its end, as far as the recorder knows: gloo's does not tell, and says no."""
    members: tuple[int, ...] = ()
    """The group's global ranks. This and what follows is empty or -1 if it comes from the recorder, which lacks it."""
    types: str = ""
    """``Float``."""
    elements: int = -1
    """How many, counted so that they are the same on all ranks; 0 if each rank may have its own number."""
    reduction: str = ""
    """``SUM``; empty if it is not known, or there is none."""
    root: int = -1
    """Rank in the group."""
    sends: tuple[int, ...] = ()
    """Elements to each rank of the group, if the collective moves them between pairs."""
    receives: tuple[int, ...] = ()
    """Elements expected from each rank of the group."""
    place: str = ""
    """The program's line: ``file:line in function``."""
    thread: str = ""
    """The name of the program's own thread that issued it; empty for the main thread."""

    def __str__(self) -> str:
        return f"{self.operation} {self.tensors}".rstrip()


def list_issued(record: Mapping[str, Any], since: int) -> list[Collective]:
    """The collectives of a flight recorder's record that were issued at or after ``since``.

    Args:
        record: what ``_dump_fr_trace`` pickled.
        since: nanoseconds of ``time.time_ns``.
    """
    entries = record.get("entries", [])
    found = [entry for entry in entries if entry["time_created_ns"] >= since and not entry.get("is_p2p", False)]
    return [_make_collective(entry) for entry in found]


def find_latest(record: Mapping[str, Any]) -> int | None:
    """When the last entry of a record was issued, be it a send, ``time.time_ns``; None without any."""
    return max((entry["time_created_ns"] for entry in record.get("entries", [])), default=None)


def find_disagreement(issued: Mapping[int, Sequence[Collective]], members: Mapping[str, Sequence[int]]) -> str | None:
    """The place where the ranks part, in a sentence; None if they all issued the same.

    Args:
        issued: the collectives of each rank whose record could be had, in the order of issue.
        members: global ranks of each process group; a group that is not named has all ranks of ``issued``.
    """
    groups = list(dict.fromkeys(c.group for collectives in issued.values() for c in collectives))
    for group in groups:
        ranks = [rank for rank in members.get(group, sorted(issued)) if rank in issued]
        lists = {rank: [c for c in issued[rank] if c.group == group] for rank in ranks}
        found = _find_parting(lists)
        if found is not None:
            everybody = set(ranks) == set(issued)
            return found if everybody else f"{found} (group of {say_ranks(ranks)})"
    return None


def describe_last(issued: Mapping[int, Sequence[Collective]]) -> list[str]:
    """The last collective of each rank, ranks of the same one together."""
    said: dict[str, list[int]] = {}
    for rank in sorted(issued):
        collectives = issued[rank]
        what = f"{collectives[-1]}, its collective {len(collectives)}" if collectives else "none"
        said.setdefault(what, []).append(rank)
    return [f"last collective of {say_ranks(ranks)}: {what}" for what, ranks in said.items()]


def say_ranks(ranks: Sequence[int]) -> str:
    """``rank 1``, or ``ranks 0, 2, 3``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def say_group(one: Collective) -> str:
    """``group 1 (ranks 0, 2)``, by the name that torch gave it: ``group.group_name``."""
    return f"group {one.group} ({say_ranks(one.members)})"


def has_unlike_sizes(one: Collective, other: Collective) -> bool:
    """Whether two ranks passed unlike numbers of elements to what must have the same on all ranks.

    Shapes may differ: an all_reduce of ``[2, 2]`` and one of ``[4]`` are the same to a backend.
    """
    same = one.operation == other.operation and one.operation in SAME_ON_ALL_RANKS
    return same and _count_elements(one.tensors) != _count_elements(other.tensors)


def _count_elements(tensors: str) -> list[int]:
    return [math.prod(map(int, shape.split(", "))) if shape else 1 for shape in _SHAPE.findall(tensors)]


def _make_collective(entry: Mapping[str, object]) -> Collective:
    names, sizes, types = entry.get("process_group"), entry.get("input_sizes"), entry.get("input_dtypes")
    shapes = [list(size) for size in sizes] if isinstance(sizes, list) else []
    kinds = [str(kind) for kind in types] if isinstance(types, list) else []
    number = entry.get("collective_seq_id", 0)
    return Collective(
        group=str(names[0]) if isinstance(names, (list, tuple)) and names else "",
        number=number if isinstance(number, int) else 0,
        operation=str(entry.get("profiling_name", "")).partition(":")[2] or str(entry.get("profiling_name", "")),
        tensors=" ".join(f"{kind}{shape}" for kind, shape in zip(kinds, shapes, strict=False)),
        done=entry.get("state") == "completed",
    )


def _find_parting(lists: Mapping[int, Sequence[Collective]]) -> str | None:
    firsts = [collectives[0].number for collectives in lists.values() if collectives]
    lasts = [collectives[-1].number for collectives in lists.values() if collectives]
    if not firsts:
        return None
    # A recorder that has overflowed has lost its oldest entries, and not the same number of them on every rank.
    for index, number in enumerate(range(max(firsts), max(lasts) + 1), start=1 + max(firsts) - min(firsts)):
        at = {rank: next((c for c in collectives if c.number == number), None) for rank, collectives in lists.items()}
        said: dict[str, list[int]] = {}
        for rank, collective in at.items():
            said.setdefault(_format_signature(collective), []).append(rank)
        if len(said) == 1:
            continue
        missing = [rank for rank, collective in at.items() if collective is None]
        there = [rank for rank, collective in at.items() if collective is not None]
        issued = {rank: str(at[rank]) for rank in there}
        if missing and len({_format_signature(at[rank]) for rank in there}) == 1:
            return (
                f"{say_ranks(missing)} never issued {issued[there[0]]} (collective {index} of the program), "
                f"which {say_ranks(there)} did"
            )
        parts = [f"{say_ranks(ranks)} issued {at[ranks[0]] or 'none'}" for ranks in said.values()]
        return f"the ranks part at collective {index} of the program: {'; '.join(parts)}"
    return None


def _format_signature(collective: Collective | None) -> str:
    if collective is None:
        return ""
    if collective.elements >= 0:
        return f"{collective.operation} {collective.types}[{collective.elements}]"
    # Others may differ by right: all_to_all with its own splits, gather and scatter away from their root.
    same = collective.operation in SAME_ON_ALL_RANKS
    return str(collective) if same else collective.operation
