"""RDMA devices, network interfaces and NCCL's network plugins, from /sys and the library path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_gpuperf.features.doctor.facts import InterfaceFacts, NetworkFacts, RdmaPort
from pytest_gpuperf.features.doctor.readers.text import list_folder, read, read_number

# Counters of a port that count errors: Linux, Documentation/ABI/stable/sysfs-class-infiniband.
_COUNTERS = ("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "local_link_integrity_errors")
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib")
_EFA = ("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu", "/opt/amazon/efa/lib")


def read_network(root: Path, environ: Mapping[str, str]) -> NetworkFacts:
    """Reads the facts.

    Args:
        root: Where sys and the libraries are; / outside of tests.
        environ: Has the library path.
    """
    devices = list_folder(root / "sys/class/infiniband")
    interfaces = [path for path in list_folder(root / "sys/class/net") if path.is_dir()]
    return NetworkFacts(
        ports=tuple(_read_port(device, port) for device in devices for port in list_folder(device / "ports")),
        interfaces=tuple(_read_interface(path) for path in interfaces if path.name != "lo"),
        plugins=_list_plugins(root, environ),
    )


def _read_port(device: Path, port: Path) -> RdmaPort:
    counts = {name: read_number(port / "counters" / name) for name in _COUNTERS}
    return RdmaPort(
        device=device.name,
        port=int(port.name) if port.name.isdigit() else 0,
        driver=_read_driver(device / "device/driver"),
        state=(read(port / "state") or "").partition(": ")[2],
        physical=(read(port / "phys_state") or "").partition(": ")[2],
        layer=read(port / "link_layer") or "",
        gbit=_parse_gbit(read(port / "rate")),
        numa_node=read_number(device / "device/numa_node"),
        errors={name: count for name, count in counts.items() if count},
    )


def _read_driver(link: Path) -> str:
    try:
        return Path(os.readlink(link)).name
    except OSError:
        return ""


def _parse_gbit(rate: str | None) -> float | None:
    try:
        return None if rate is None else float(rate.split()[0])  # 400 Gb/sec (4X NDR)
    except (ValueError, IndexError):
        return None


def _read_interface(path: Path) -> InterfaceFacts:
    speed = read_number(path / "speed")
    return InterfaceFacts(
        name=path.name,
        up=read(path / "operstate") in ("up", "unknown"),  # unknown: a driver that does not say, and works
        mtu=read_number(path / "mtu"),
        megabit=speed if speed is not None and speed > 0 else None,
        physical=(path / "device").exists(),
    )


def _list_plugins(root: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    path = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders = [root / folder.lstrip("/") for folder in (*path, *_LIBRARIES, *_EFA)]
    found = {file.name for folder in folders for file in _list_libraries(folder)}
    return tuple(sorted(found))


def _list_libraries(folder: Path) -> list[Path]:
    try:
        return list(folder.glob("libnccl-net*.so"))
    except OSError:
        return []
