"""The picture of how GPUs reach one another: GPUs on a circle, a line for each path."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_gpuperf.hardware.topology import Topology
from pytest_gpuperf.report.units import format_count

WIDTH, HEIGHT = 520, 360
_RADIUS_X, _RADIUS_Y = 200, 130


@dataclass(frozen=True, slots=True)
class Place:
    """The middle of a GPU in the picture."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line:
    """A path in the picture."""

    start: Place
    end: Place
    kind: str
    """nvlink, near, far or unknown; a style of the page."""
    text: str


@dataclass(frozen=True)
class Picture:
    """What the page shows of one machine's topology."""

    hardware_key: str
    topology: Topology

    @cached_property
    def places(self) -> Sequence[Place]:
        """The places of the GPUs, in their order, from the left around the circle."""
        count = len(self.topology.gpus)
        angles = (math.pi + 2 * math.pi * number / count for number in range(count))
        return [
            Place(round(WIDTH / 2 + _RADIUS_X * math.cos(angle)), round(HEIGHT / 2 + _RADIUS_Y * math.sin(angle)))
            for angle in angles
        ]

    @property
    def lines(self) -> Sequence[Line]:
        """The paths, the slowest first, so that faster ones lie above them."""
        lines = [
            Line(
                self.places[path.first],
                self.places[path.second],
                _choose_kind(path.label),
                f"GPU {path.first} and GPU {path.second}: {path.label}",
            )
            for path in self.topology.paths
        ]
        return sorted(lines, key=lambda line: ("unknown", "far", "near", "nvlink").index(line.kind))

    @property
    def kinds(self) -> Sequence[tuple[str, str]]:
        """Kinds of lines with the labels that they stand for, the fastest first."""
        labels = sorted({path.label for path in self.topology.paths})
        kinds = ("nvlink", "near", "far", "unknown")
        found = ((kind, [label for label in labels if _choose_kind(label) == kind]) for kind in kinds)
        return [(kind, ", ".join(of_kind)) for kind, of_kind in found if of_kind]

    @property
    def summary(self) -> str:
        """The GPUs, and how many pairs have which label."""
        gpus = ", ".join(f"{count} x {name}" for name, count in Counter(self.topology.gpus).items())
        pairs = Counter(path.label for path in self.topology.paths)
        paths = ", ".join(f"{label} between {format_count(count, 'pair')}" for label, count in sorted(pairs.items()))
        return f"{gpus}: {paths}" if paths else gpus

    @property
    def rows(self) -> Sequence[Sequence[str]]:
        """The table of ``nvidia-smi topo -m``."""
        everyone = range(len(self.topology.gpus))
        return [["X" if one == other else self.topology.label(one, other) for other in everyone] for one in everyone]


def _choose_kind(label: str) -> str:
    if label.startswith("NV"):
        return "nvlink"
    return {"PIX": "near", "PXB": "near", "PHB": "far", "NODE": "far", "SYS": "far"}.get(label, "unknown")
