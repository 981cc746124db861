"""The table of how GPUs reach one another, as ``nvidia-smi topo -m`` prints it."""

from __future__ import annotations

from pytest_gpuperf.features.doctor.readers.text import spell
from pytest_gpuperf.hardware.inspection import Inspection
from pytest_gpuperf.hardware.numa import Nodes, find_node
from pytest_gpuperf.hardware.topology import UNKNOWN, Topology


def format_table(seen: Inspection, nodes: Nodes) -> list[str]:
    """The lines of the table; nothing without GPUs.

    Args:
        seen: The GPUs.
        nodes: Cores of each NUMA node.
    """
    if not seen.gpus:
        return []
    topology = Topology.of(seen)
    names = [f"GPU{index}" for index in range(len(seen.gpus))]
    rows = [["", *names, "CPU cores", "NUMA"]]
    for index, gpu in enumerate(seen.gpus):
        cells = ["X" if other == index else topology.label(index, other) for other in range(len(names))]
        rows.append([names[index], *cells, spell(gpu.cores) or UNKNOWN, find_node(gpu.cores, nodes) or UNKNOWN])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
