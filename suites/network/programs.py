"""The RDMA ports of a host, and two ranks whose messages loop through one of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf import Context, NcclLog
from suites.shared.ways import Way, connected

DEVICES = Path("/sys/class/infiniband")
LAYERS = ("InfiniBand", "Ethernet")
"""Those that NCCL's own transport uses. Other adapters need a plugin."""
# NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
_USING = re.compile(r"NET/IB : Using (.+)")
_USED = re.compile(r"\[\d+\](\S+?:\d+)/")


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an RDMA device."""

    device: str
    number: int
    state: str
    """``ACTIVE``, ``DOWN``, ``INIT``, ..."""
    layer: str
    """``InfiniBand``, or ``Ethernet`` for RoCE."""
    rate: float
    """Bytes per second in one direction; 0 if the kernel reports none."""

    def __str__(self) -> str:
        return f"{self.device}:{self.number}"

    @property
    def usable(self) -> bool:
        """Whether NCCL can send through it."""
        return self.state == "ACTIVE" and self.layer in LAYERS and self.rate > 0

    @property
    def way(self) -> Way:
        """Messages between two GPUs of this host through this port and nothing else."""
        only = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "IB", "NCCL_IB_HCA": f"={self}"}
        return Way(f"NET/IB through {self}", "NET/IB", only)


@dataclass(frozen=True, slots=True)
class Route:
    """What NCCL's log of a rank says of the way through the network."""

    log: NcclLog
    used: tuple[str, ...]
    """The ports that NCCL uses, such as ``mlx5_0:1``."""

    @classmethod
    def of(cls, text: str) -> Route:
        """Reads a log."""
        used = (port for line in _USING.findall(text) for port in _USED.findall(line))
        return cls(NcclLog.of(text), tuple(dict.fromkeys(used)))

    @property
    def channels(self) -> dict[str, int]:
        """How many channels are by GPUDirect RDMA, and how many go through the host's memory."""
        direct = sum("GDRDMA" in one.transport for one in self.log.connections)
        return {"gpudirect": direct, "through_host": len(self.log.connections) - direct}


def ports(root: Path = DEVICES) -> list[Port]:
    """The ports of all RDMA devices, by name; none without the folder."""
    found = [_port(folder) for folder in root.glob("*/ports/*") if folder.name.isdigit()]
    return sorted(found, key=lambda port: (port.device, port.number))


def why_none(found: Sequence[Port], root: Path = DEVICES) -> str:
    """Why no port can be measured; empty if one can."""
    if any(port.usable for port in found):
        return ""
    if not found:
        return f"no RDMA device: {root} is empty or absent"
    told = ", ".join(f"{port} is {port.state or 'in no state'} ({port.layer or 'no link layer'})" for port in found)
    return f"no RDMA port that NCCL can use: {told}"


def routed(ctx: Context) -> Route:
    """Connects the ranks, and returns what NCCL says of it."""
    connected(ctx)
    return Route.of(Path(os.environ["NCCL_DEBUG_FILE"]).read_text(encoding="utf-8", errors="replace"))


def _port(folder: Path) -> Port:
    return Port(
        device=folder.parent.parent.name,
        number=int(folder.name),
        state=_read(folder / "state").partition(": ")[2],  # 4: ACTIVE
        layer=_read(folder / "link_layer"),
        rate=_bytes_per_second(_read(folder / "rate")),
    )


def _bytes_per_second(rate: str) -> float:
    """The rate in the kernel's form, such as 400 Gb/sec (4X NDR)."""
    number = re.match(r"(\d+(?:\.\d+)?) Gb/sec", rate)
    return 0.0 if number is None else float(number[1]) * 1e9 / 8


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
