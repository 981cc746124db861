"""The NUMA nodes of the host: which cores each has, and at which of them GPUs and processes are."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

Nodes = Mapping[str, Collection[int]]
"""Cores of each node, by its number."""

_SYS = Path("/sys")


def read_nodes(sys: Path = _SYS) -> dict[str, tuple[int, ...]]:
    """Return the nodes as the kernel lists them, without those that have no cores; empty if it lists none."""
    found = {}
    for folder in _list_folders(sys / "devices/system/node"):
        try:
            text = (folder / "cpulist").read_text().strip()
        except OSError:
            continue
        if text:
            found[folder.name.removeprefix("node")] = parse_cores(text)
    return found


def parse_cores(text: str) -> tuple[int, ...]:
    """The numbers of a list such as 0-3,8: the kernel's form for CPUs.

    Raises:
        ValueError: It is no such list.
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def find_node(cores: Collection[int], nodes: Nodes) -> str:
    """The node that has all of these cores; empty if none has."""
    return next((node for node, own in nodes.items() if cores and set(cores) <= set(own)), "")


def describe_nodes(cores: Collection[int], nodes: Nodes) -> str:
    """The nodes that have any of these cores, as a list in words: ``0, 1``; empty if none has."""
    return ", ".join(node for node, own in nodes.items() if not set(cores).isdisjoint(own))


def _list_folders(path: Path) -> list[Path]:
    try:
        found = [folder for folder in path.iterdir() if re.fullmatch(r"node\d+", folder.name)]
    except OSError:
        return []
    return sorted(found, key=lambda folder: int(folder.name.removeprefix("node")))
