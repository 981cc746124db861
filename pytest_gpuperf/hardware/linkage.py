"""How the GPUs of one machine reach one another, and how fast their links can be."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from pytest_gpuperf.hardware.datasheets import NVLINK, PCIE_LANE
from pytest_gpuperf.hardware.device import SWITCH, Devices, Distance, Gpu

_HIDDEN = Distance.SYS  # what a virtual machine that hides its topology is taken for


@dataclass(frozen=True, slots=True)
class Linkage:
    """The links that every pair of a set of GPUs has."""

    kind: Literal["nvlink", "pcie", "none", "network"]
    label: str
    """As nvidia-smi topo -m says it, in lower case: nv18, pix, sys; empty for a single GPU. In a cluster, a node's."""
    bytes_per_second: float | None
    """Line rate of one GPU to all others together, one direction; None where no one rate is a bound."""


def linkage(gpus: Sequence[Gpu], devices: Devices) -> Linkage:
    """Finds how the worst pair of GPUs is joined.

    NVLink counts only where it joins every pair, through switches or directly. A machine that joins some
    pairs by NVLink and others by PCIe has no one line rate: traffic may use both at once.

    Raises:
        HardwareError: Where the vendor's library is gone or cannot describe the links.
    """
    if len(gpus) < 2:
        return Linkage("none", "", None)
    with devices.session() as present:
        if not present:
            raise devices.make_gone_error(f"how {len(gpus)} GPUs are linked")
        ends = [devices.link_ends(gpu.uuid) for gpu in gpus]
        switched = [peers.count(SWITCH) for peers in ends]
        if min(switched):
            return Linkage("nvlink", f"nv{min(switched)}", _compute_nvlink_rate(gpus, switched))
        direct = {
            (a, b): min(ends[a].count(gpus[b].pci_bus_id), ends[b].count(gpus[a].pci_bus_id))
            for a, b in combinations(range(len(gpus)), 2)
        }
        if min(direct.values()):
            per_gpu = [sum(links for pair, links in direct.items() if gpu in pair) for gpu in range(len(gpus))]
            return Linkage("nvlink", f"nv{min(direct.values())}", _compute_nvlink_rate(gpus, per_gpu))
        distance = max(_find_distance(devices, a, b) for a, b in combinations(gpus, 2))
        partly_nvlink = any(switched) or any(direct.values())
        return Linkage("pcie", distance.name.lower(), None if partly_nvlink else compute_pcie_rate(devices, gpus))


def _find_distance(devices: Devices, a: Gpu, b: Gpu) -> Distance:
    distance = devices.distance(a.uuid, b.uuid)
    return _HIDDEN if distance is None else distance


def _compute_nvlink_rate(gpus: Sequence[Gpu], links: Sequence[int]) -> float | None:
    rates = [NVLINK.get(gpu.compute_capability) for gpu in gpus]
    known = [count * rate for count, rate in zip(links, rates, strict=True) if rate is not None]
    return min(known) if len(known) == len(gpus) else None


def compute_pcie_rate(devices: Devices, gpus: Sequence[Gpu]) -> float | None:
    """Bytes/s of the slowest GPU's slot, one direction; None if one of them is unknown."""
    slowest: float | None = None
    for gpu in gpus:
        pcie = devices.pcie(gpu.uuid)
        if pcie is None or pcie.generation not in PCIE_LANE or not pcie.lanes:
            return None
        rate = pcie.lanes * PCIE_LANE[pcie.generation]
        slowest = rate if slowest is None else min(slowest, rate)
    return slowest
