"""The rates of one machine, as the model uses them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pytest_gpuperf.features.day_zero.model import table
from pytest_gpuperf.features.day_zero.model.between_nodes import BetweenNodes
from pytest_gpuperf.hardware.datasheets import NVLINK, find_peak
from pytest_gpuperf.hardware.machine import Machine


@dataclass(frozen=True, slots=True)
class Rates:
    """What one machine's data sheets allow. None: unknown, so there is no model of what needs it."""

    name: str = ""
    """The name of the GPU."""
    line: float | None = None
    """Bytes/s of one GPU's links to all others, one direction."""
    nccl: float | None = None
    """Bytes/s over these links that NCCL's kernels reach at best."""
    wire: Literal["nvlink", "pcie"] = "nvlink"
    links: str = ""
    """The links in words."""
    multicast: bool = False
    memory: float | None = None
    """Bytes/s of a GPU's own memory, reads and writes together."""
    power: float = 1.0
    """Power limit over the data sheet's; at most 1."""
    between: BetweenNodes | None = None
    """The network between the nodes of a cluster; None on one machine."""

    @classmethod
    def of(cls, machine: Machine, environ: Mapping[str, str] = os.environ) -> Rates:
        """Reads a machine's rates. GPUs of several kinds have none: no data sheet says what they do together.

        Args:
            machine: the GPUs of all nodes, as one machine's.
            environ: of the ranks.
        """
        if not machine.gpus or len({gpu.name for gpu in machine.gpus}) > 1:
            return cls()
        gpu, linkage = machine.gpus[0], machine.linkage
        line = None if linkage is None else linkage.bytes_per_second
        limits = [one.power_limit_watts for one in machine.gpus if one.power_limit_watts is not None]
        watts = _find_by_name(gpu.name, table.WATTS)
        rates = cls(
            name=gpu.name,
            line=line,
            multicast=machine.multicast,
            memory=machine.memory_rate,
            power=min(1.0, min(limits) / watts) if limits and watts else 1.0,
        )
        if linkage is not None and linkage.kind == "network":
            return replace(rates, between=BetweenNodes.of(machine, environ))
        if linkage is None or line is None:
            return rates
        if linkage.kind == "nvlink":
            one, whole = table.NCCL_LINK.get(gpu.compute_capability), NVLINK.get(gpu.compute_capability)
            reached = None if one is None or whole is None else line * one / whole
            return rates.link(reached, "nvlink", f"links between GPUs ({linkage.label.upper()})")
        share = table.NCCL_PCIE if linkage.label in table.DIRECT else table.THROUGH_HOST
        return rates.link(line * share, "pcie", f"links between GPUs (PCIe, {linkage.label.upper()})")

    def link(self, nccl: float | None, wire: Literal["nvlink", "pcie"], words: str) -> Rates:
        """Return these rates with those that NCCL reaches over the links."""
        return replace(self, nccl=nccl, wire=wire, links=words)

    def peak(self, dtype: str) -> float | None:
        """FLOP/s of the matrix units by the data sheet."""
        return find_peak(self.name, dtype)


def _find_by_name(name: str, values: Mapping[str, float]) -> float | None:
    return next((value for start, value in values.items() if name.startswith(start)), None)
