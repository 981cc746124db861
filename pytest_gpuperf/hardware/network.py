"""The network of a node: which adapters join it to other nodes, and how fast these say that they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

_GBIT, _MBIT = 1e9 / 8, 1e6 / 8  # bytes/s
_BOOT = Path("proc/sys/kernel/random/boot_id")
_PORTS, _INTERFACES = Path("sys/class/infiniband"), Path("sys/class/net")


@dataclass(frozen=True, slots=True)
class Network:
    """The adapters of a node, or of all nodes together."""

    name: str = ""
    """Names of the adapters."""
    rdma: bool = False
    """Whether they are adapters for RDMA, with InfiniBand or RoCE; else TCP goes through one interface."""
    one: float | None = None
    """Bytes/s of the slowest adapter, one direction; None if unknown."""
    together: float | None = None
    """Bytes/s of all adapters of a node, one direction; None if unknown."""
    boot: str = ""
    """The kernel's boot id; only nodes of one machine share it."""
    unknown: str = ""
    """Why no rate is known; empty if it is."""


def read_network(interface: str | None, root: Path = Path("/")) -> Network:
    """The network of this machine: its active ports for RDMA, which NCCL prefers, else the interface.

    Args:
        interface: by which other nodes reach it; None if that is unknown.
        root: where proc and sys are.
    """
    boot = _read_text(root / _BOOT)
    ports = [
        port for port in sorted((root / _PORTS).glob("*/ports/*")) if _read_text(port / "state").endswith("ACTIVE")
    ]
    if not ports:
        return replace(_read_interface(interface, root / _INTERFACES), boot=boot)
    names = ", ".join(dict.fromkeys(port.parents[1].name for port in ports))
    if any(_read_driver(port.parents[1]) == "efa" for port in ports):
        return Network(names, rdma=True, boot=boot, unknown=f"EFA gives no rate of {names} that is one")
    rates = [_parse_gbit(_read_text(port / "rate")) for port in ports]
    known = [rate * _GBIT for rate in rates if rate is not None]
    if len(known) < len(rates):
        return Network(names, rdma=True, boot=boot, unknown=f"the rate of {names} is unknown")
    return Network(names, rdma=True, one=min(known), together=sum(known), boot=boot)


def merge_networks(networks: Mapping[str, Network | None]) -> Network | None:
    """Joins the networks of nodes into one, as fast as the slowest; returns None if a node reported none.

    Args:
        networks: by the nodes' names.
    """
    told = {name: network for name, network in networks.items() if network is not None}
    if not told or len(told) < len(networks):
        return None
    boots = [network.boot for network in told.values()]
    if "" in boots or len(set(boots)) < len(boots):
        return Network(unknown="several nodes are one machine, and no adapter is between them")
    for name, network in told.items():
        if network.unknown:
            return Network(network.name, network.rdma, unknown=f"node {name}: {network.unknown}")
    first = next(iter(told.values()))
    if any(network.rdma is not first.rdma for network in told.values()):
        return Network(unknown="some nodes have adapters for RDMA, and others have none")
    one = [network.one for network in told.values() if network.one is not None]
    together = [network.together for network in told.values() if network.together is not None]
    return Network(first.name, first.rdma, min(one), min(together))


def _read_interface(interface: str | None, folder: Path) -> Network:
    if interface is None:
        return Network(unknown="the interface between the nodes is unknown")
    path = folder / interface
    parts = _read_text(path / "bonding" / "slaves").split()
    if not parts and not (path / "device").exists():  # of a container's or a bridge's, the speed is made up, if any
        return Network(interface, unknown=f"{interface} is no adapter, so its rate is unknown")
    whole = _parse_mbit(_read_text(path / "speed"))
    slowest = [_parse_mbit(_read_text(folder / part / "speed")) for part in parts] or [whole]
    known = [rate for rate in slowest if rate is not None]
    if whole is None or len(known) < len(slowest):
        return Network(interface, unknown=f"the rate of {interface} is unknown")
    return Network(interface, one=min(known), together=whole)


def _parse_mbit(text: str) -> float | None:
    return int(text) * _MBIT if text.isdecimal() and int(text) else None  # -1: the driver does not know


def _parse_gbit(text: str) -> float | None:
    number = text.partition(" ")[0]  # 400 Gb/sec (4X NDR)
    try:
        return float(number) or None
    except ValueError:
        return None


def _read_driver(device: Path) -> str:
    try:
        return Path(os.readlink(device / "device" / "driver")).name
    except OSError:
        return ""


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # also what the kernel answers for the speed of an interface that is down
        return ""
