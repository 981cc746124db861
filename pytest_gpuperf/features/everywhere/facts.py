"""The facts of a node that decide whether it can be part of a run: gathered there, without Ray and without torch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pytest_gpuperf.hardware.device import HardwareError
from pytest_gpuperf.hardware.interfaces import find_interface, list_interfaces, read_packet_size
from pytest_gpuperf.hardware.machine import find_devices
from pytest_gpuperf.ranks.alike import ALIKE, read_version

_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts of one node."""

    host: str
    """Its host name."""
    address: str
    """Its address on the way to the first node."""
    versions: Mapping[str, str]
    """By name; empty for what is not installed."""
    gpus: tuple[str, ...]
    """Their names."""
    shared_memory: int
    """Free bytes in /dev/shm."""
    cores: int
    """Cores that this process may use."""
    machine_cores: int
    """Cores of the machine."""
    interface: str
    """The network interface with the address; empty if none has it."""
    mtu: int
    """Bytes of that interface's largest packet; 0 if unknown."""
    interfaces: tuple[str, ...]
    """All interfaces of the node."""
    wanted_interfaces: Mapping[str, str]
    """What the environment says about interfaces, by variable."""
    own_name_is: tuple[str, ...]
    """Addresses to which the node resolves its own name; none if it does not."""
    ray_address: str
    """What ``RAY_ADDRESS`` is here; empty if it is not set."""

    def make_json(self) -> dict[str, Any]:
        """Return the facts as JSON has them."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Return the facts that a node has sent."""
        lists = {name: tuple(map(str, told[name])) for name in ("gpus", "interfaces", "own_name_is")}
        return cls(**{**told, **lists})


def gather(address: str, environ: Mapping[str, str]) -> NodeFacts:
    """Return the facts of this node. May take seconds, as names are resolved.

    Args:
        address: of this node, on the way to the first one.
        environ: its environment.
    """
    host = socket.gethostname()
    interface = find_interface(address) or ""
    wanted = {name: environ[name] for name in _INTERFACES if environ.get(name)}
    return NodeFacts(
        host=host,
        address=address,
        versions=_read_versions(),
        gpus=_list_gpus(environ),
        shared_memory=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        cores=len(os.sched_getaffinity(0)),
        machine_cores=os.cpu_count() or 1,
        interface=interface,
        mtu=read_packet_size(interface) or 0,
        interfaces=list_interfaces(),
        wanted_interfaces=wanted,
        own_name_is=resolve(host),
        ray_address=environ.get("RAY_ADDRESS", ""),
    )


def resolve(name: str) -> tuple[str, ...]:
    """Return the addresses of a name; none if it has none."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def read_clock() -> float:
    """Return the time of the node's clock, seconds."""
    return time.time()


def _read_versions() -> dict[str, str]:
    nccl = ""
    for distribution in importlib.metadata.distributions():
        if (distribution.metadata["Name"] or "").startswith("nvidia-nccl-cu"):
            nccl = distribution.version
            break
    return {
        "Python": platform.python_version(),
        **{name: read_version(name) for name in (*ALIKE, "ray")},
        "NCCL": nccl,
    }


def _list_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return tuple(gpu.name for gpu in find_devices().visible(environ))
    except HardwareError:
        return ()
