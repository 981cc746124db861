"""How GPUs reach one another, in the words of ``nvidia-smi topo -m``."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuperf.hardware.inspection import GpuFacts, Inspection

UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Path:
    """The path between two GPUs, by their places in ``Topology.gpus``."""

    first: int
    second: int
    label: str
    """NV#, PIX, PXB, PHB, NODE or SYS; ? if the machine hides it."""


@dataclass(frozen=True, slots=True)
class Topology:
    """All GPUs of the machine, whatever CUDA shows of them."""

    gpus: tuple[str, ...]
    """Their names, in the vendor's order."""
    paths: tuple[Path, ...]
    """One for each pair."""

    def __post_init__(self) -> None:
        """Refuse paths of GPUs that are not there, which only a file that somebody edited has."""
        named = {index for path in self.paths for index in (path.first, path.second)}
        if named - set(range(len(self.gpus))):
            raise ValueError(f"paths name GPUs {sorted(named)}, expected some of {len(self.gpus)} GPUs")

    @classmethod
    def of(cls, seen: Inspection) -> Topology:
        """Return what was seen."""
        paths = tuple(Path(first, second, label) for (first, second), label in label_pairs(seen).items())
        return cls(tuple(gpu.name for gpu in seen.gpus), paths)

    def label(self, first: int, second: int) -> str:
        """Return the label of a pair in either order."""
        pair = {first, second}
        return next((path.label for path in self.paths if {path.first, path.second} == pair), UNKNOWN)


def count_links(seen: Inspection, first: int, second: int) -> int:
    """Return how many NVLinks join two GPUs: to a switch that both have, or to one another."""
    one, other = seen.gpus[first], seen.gpus[second]
    if one.switched and other.switched:
        return min(one.active_links, other.active_links)
    return min(_count_links_to(one, other), _count_links_to(other, one))


def label_pairs(seen: Inspection) -> dict[tuple[int, int], str]:
    """Return NV#, PIX, PXB, PHB, NODE or SYS for each pair; ? if the machine hides it."""
    found = {}
    for pair in seen.pairs:
        links = count_links(seen, pair.first, pair.second)
        found[pair.first, pair.second] = f"NV{links}" if links else pair.distance or UNKNOWN
    return found


def _count_links_to(one: GpuFacts, other: GpuFacts) -> int:
    """Return how many active NVLinks of a GPU end at another; none if its address is unknown."""
    return sum(link.active and link.end == other.pci_bus_id for link in one.links) if other.pci_bus_id else 0
