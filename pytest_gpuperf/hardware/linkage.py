"""How the GPUs of one machine reach one another, and how fast their links can be."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import pynvml

from pytest_gpuperf.hardware.errors import HardwareError
from pytest_gpuperf.hardware.gpus import Gpu, active_links, bus_id
from pytest_gpuperf.hardware.line_rates import NVLINK, PCIE_LANE
from pytest_gpuperf.hardware.nvml import Nvml, if_supported, nvml_session

# nvml.h nvmlGpuTopologyLevel_t in the words of nvidia-smi topo -m; a board's own switch (0) is a switch.
_LEVELS = {0: "pix", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}
_SWITCH = "switch"
_FARTHEST = 50  # what a virtual machine that hides its topology is taken for


@dataclass(frozen=True, slots=True)
class Linkage:
    """The links that every pair of a set of GPUs has."""

    kind: Literal["nvlink", "pcie", "none"]
    label: str
    """As nvidia-smi topo -m says it, in lower case: nv18, pix, sys; empty for a single GPU."""
    bytes_per_second: float | None
    """Line rate of one GPU to all others together, one direction; None where no one rate is a bound."""


def linkage(gpus: Sequence[Gpu], nvml: Nvml = pynvml) -> Linkage:
    """Finds how the worst pair of GPUs is joined.

    NVLink counts only where it joins every pair, through switches or directly. A machine that joins some
    pairs by NVLink and others by PCIe has no one line rate: traffic may use both at once.

    Raises:
        HardwareError: Where NVML is gone or cannot describe the links.
    """
    if len(gpus) < 2:
        return Linkage("none", "", None)
    with nvml_session(nvml) as present:
        if not present:
            raise HardwareError(
                f"NVML is not there to say how {len(gpus)} GPUs are linked, expected it where they were "
                "found: check that nvidia-smi runs"
            )
        handles = [nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in gpus]
        ends = [_remote_ends(nvml, handle) for handle in handles]
        switched = [peers.count(_SWITCH) for peers in ends]
        if min(switched):
            return Linkage("nvlink", f"nv{min(switched)}", _nvlink_rate(gpus, switched))
        direct = {
            (a, b): min(ends[a].count(gpus[b].pci_bus_id), ends[b].count(gpus[a].pci_bus_id))
            for a, b in combinations(range(len(gpus)), 2)
        }
        if min(direct.values()):
            per_gpu = [sum(links for pair, links in direct.items() if gpu in pair) for gpu in range(len(gpus))]
            return Linkage("nvlink", f"nv{min(direct.values())}", _nvlink_rate(gpus, per_gpu))
        level = max(_level(nvml, a, b) for a, b in combinations(handles, 2))
        partly_nvlink = any(switched) or any(direct.values())
        return Linkage("pcie", _LEVELS[level], None if partly_nvlink else _pcie_rate(nvml, handles))


def _remote_ends(nvml: Nvml, handle: Any) -> list[str]:
    """What each active NVLink leads to: a switch, or the device at a PCI address."""
    ends = []
    for link in active_links(nvml, handle):
        kind = if_supported(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            ends.append(_SWITCH)
        else:
            ends.append(bus_id(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)))
    return ends


def _level(nvml: Nvml, a: Any, b: Any) -> int:
    level: int | None = if_supported(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, a, b)
    return _FARTHEST if level is None else level


def _nvlink_rate(gpus: Sequence[Gpu], links: Sequence[int]) -> float | None:
    rates = [NVLINK.get(gpu.compute_capability) for gpu in gpus]
    known = [count * rate.bytes_per_second for count, rate in zip(links, rates, strict=True) if rate is not None]
    return min(known) if len(known) == len(gpus) else None


def _pcie_rate(nvml: Nvml, handles: Sequence[Any]) -> float | None:
    slowest: float | None = None
    for handle in handles:
        generation = if_supported(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
        lanes = if_supported(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
        if generation not in PCIE_LANE or not lanes:
            return None
        rate = lanes * PCIE_LANE[generation]
        slowest = rate if slowest is None else min(slowest, rate)
    return slowest
