"""Which part of a host a metric depends on, as far as the metric says it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_GPU = re.compile(r"(?:gpu|rank)_?(\d+)|_of_(\d+)$")
_PAIR = re.compile(r"(?:gpu|rank)?_?(\d+)(?:-|_to_|->)(?:gpu|rank)?_?(\d+)$")
_PCIE_LABELS = ("pix", "pxb", "phb", "node", "sys")


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a host."""

    kind: str
    """GPU, GPU memory, links between GPUs, PCIe; host if the metric depends on all of them."""
    number: str = ""
    """The number of the GPU, or of both ends of the link: 3, 0-3; empty if the metric names none."""

    def __str__(self) -> str:
        """The part in words: GPU 3, link 0-3, links between GPUs."""
        if not self.number:
            return self.kind
        return f"link {self.number}" if "-" in self.number else f"GPU {self.number}"


def find_component(name: str, unit: str, limit_name: str) -> Component:
    """The part that a metric depends on.

    Args:
        name: Of the metric. One that ends with gpu3, rank3 or _of_3 names a GPU; with 0-3 or 0_to_3, a link.
        unit: Of the metric: FLOP/s is a GPU's.
        limit_name: What sets the metric's physical limit, as the test names it: nv18, PCIe, memory, matrix units.
    """
    pair, gpu = _PAIR.search(name), _GPU.search(name)
    if pair is not None:
        return Component("links between GPUs", f"{pair[1]}-{pair[2]}")
    number = "" if gpu is None else gpu[1] or gpu[2]
    if limit_name == "matrix units" or unit == "FLOP/s":
        return Component("GPU", number)
    if limit_name == "memory":
        return Component("GPU memory", number)
    if limit_name == "PCIe":
        return Component("PCIe", number)
    if re.fullmatch(r"nv\d+", limit_name) or limit_name in _PCIE_LABELS:
        return Component("links between GPUs", number)
    return Component("GPU" if number else "host", number)
