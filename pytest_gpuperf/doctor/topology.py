"""The table of how GPUs reach one another, in the words of ``nvidia-smi topo -m``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pytest_gpuperf.doctor.readers.text import spelled
from pytest_gpuperf.hardware.inspection import GpuFacts, Inspection


def links_between(seen: Inspection, first: int, second: int) -> int:
    """How many NVLinks join two GPUs: to a switch that both have, or to one another."""
    one, other = seen.gpus[first], seen.gpus[second]
    if one.switched and other.switched:
        return min(one.active_links, other.active_links)
    return min(_leading_to(one, other), _leading_to(other, one))


def _leading_to(one: GpuFacts, other: GpuFacts) -> int:
    """How many active NVLinks of a GPU end at another; none if its address is unknown."""
    return sum(link.active and link.end == other.pci_bus_id for link in one.links) if other.pci_bus_id else 0


def labels(seen: Inspection) -> dict[tuple[int, int], str]:
    """NV#, PIX, PXB, PHB, NODE or SYS for each pair; ? if the machine hides it."""
    found = {}
    for pair in seen.pairs:
        links = links_between(seen, pair.first, pair.second)
        found[pair.first, pair.second] = f"NV{links}" if links else pair.distance or "?"
    return found


def node_of(cores: Collection[int], nodes: Mapping[str, Collection[int]]) -> str:
    """The NUMA node that has all of these cores; empty if none has."""
    return next((node for node, own in nodes.items() if cores and set(cores) <= set(own)), "")


def table(seen: Inspection, nodes: Mapping[str, Collection[int]]) -> list[str]:
    """The lines of the table; nothing without GPUs.

    Args:
        seen: The GPUs.
        nodes: Cores of each NUMA node.
    """
    if not seen.gpus:
        return []
    known = labels(seen)
    names = [f"GPU{index}" for index in range(len(seen.gpus))]
    rows = [["", *names, "CPU cores", "NUMA"]]
    for index, gpu in enumerate(seen.gpus):
        cells = [
            "X" if other == index else known.get((min(index, other), max(index, other)), "?")
            for other in range(len(names))
        ]
        rows.append([names[index], *cells, spelled(gpu.cores) or "?", node_of(gpu.cores, nodes) or "?"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
