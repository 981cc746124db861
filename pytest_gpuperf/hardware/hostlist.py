"""Reads the lists of host names that Slurm and OpenMPI write in short."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SLURM = re.compile(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*")
_BRACKET = re.compile(r"\[([^\]]*)\]")
_OPENMPI = re.compile(r"([^\[,@]+)(?:\[(\d+):([^\]]*)\]([^,@]*))?")


def parse_slurm_names(text: str) -> tuple[str, ...]:
    """Return the names in a list such as ``gpu[01-03,7]-a,login``, as ``scontrol show hostnames`` does."""
    names: list[str] = []
    for match in _SLURM.finditer(text):
        if match[0]:
            names += _expand(match[0])
    return tuple(names)


def parse_openmpi_names(text: str) -> tuple[str, ...]:
    """Return the names in a list such as ``gpu[2:1-3],login@0(4)``, as OpenMPI 4 gives it to its daemons.

    The number before the colon is the width of the numbers.
    """
    names: list[str] = []
    for prefix, width, ranges, suffix in _OPENMPI.findall(text.partition("@")[0]):
        if not width:
            names.append(prefix)
            continue
        names += [f"{prefix}{number:0{int(width)}d}{suffix}" for number, _ in _iterate_numbers(ranges)]
    return tuple(names)


def _expand(name: str) -> Iterator[str]:
    found = _BRACKET.search(name)
    if found is None:
        yield name
        return
    before, after = name[: found.start()], name[found.end() :]
    for number, width in _iterate_numbers(found[1]):
        yield from _expand(f"{before}{number:0{width}d}{after}")


def _iterate_numbers(ranges: str) -> Iterator[tuple[int, int]]:
    for one in ranges.split(","):
        first, _, last = one.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield number, len(first)
