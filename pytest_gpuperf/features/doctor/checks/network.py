"""InfiniBand, RoCE, EFA and Ethernet, as far as NCCL uses them between hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuperf.features.doctor.facts import Facts, RdmaPort
from pytest_gpuperf.features.doctor.finding import Finding, make_info, make_passed, make_unknown, make_warning
from pytest_gpuperf.features.doctor.words import join_unique

_ONE_HOST = "it matters to runs on several hosts alone"


def check(facts: Facts) -> Iterator[Finding]:
    """All of the module."""
    ports = facts.network.ports
    efa = [port for port in ports if port.driver == "efa"]
    rdma = [port for port in ports if port.driver != "efa"]
    if not ports:
        yield make_info(
            "rdma", "no InfiniBand, RoCE or EFA device", f"between hosts NCCL takes TCP sockets; {_ONE_HOST}"
        )
    if rdma:
        yield from _check_ports(rdma)
    if efa:
        yield from _check_efa(facts, efa)
    if ports and facts.inspection.gpus:
        yield from _check_gpudirect(facts, efa)
    yield from _check_interfaces(facts)


def _name(port: RdmaPort) -> str:
    return f"{port.device}:{port.port}"


def _check_ports(ports: Sequence[RdmaPort]) -> Iterator[Finding]:
    active = [port for port in ports if port.state == "ACTIVE"]
    down = [port for port in ports if port.state and port.state != "ACTIVE"]
    if down:
        states = join_unique(f"{_name(port)} {port.state} {port.physical}".rstrip() for port in down)
        yield make_warning(
            "rdma ports",
            f"{len(down)} of {len(ports)} RDMA ports are not active: {states}",
            f"NCCL has fewer ways out, and ranks near them take a longer one; {_ONE_HOST}",
            "look at cable, switch port and subnet manager: ibstat",
        )
    elif active:
        words = join_unique(f"{port.gbit:g} Gbit/s" for port in active if port.gbit)
        yield make_passed("rdma ports", f"all {len(active)} RDMA ports are active, {words or 'of unknown rate'}")
    rates = {port.gbit for port in active if port.gbit}
    if len(rates) > 1:
        slow = [port for port in active if port.gbit and port.gbit < max(rates)]
        yield make_warning(
            "rdma rates",
            f"{join_unique(f'{_name(p)} {p.gbit:g} Gbit/s' for p in slow)}; the fastest have {max(rates):g} Gbit/s",
            f"a port that trained down, or one for storage, slows what NCCL sends over it; {_ONE_HOST}",
            "look at the cable (mlxlink -d DEVICE), or keep NCCL off such ports with NCCL_IB_HCA",
        )
    layers = {port.layer for port in active if port.layer}
    if len(layers) > 1:
        yield make_info(
            "rdma layers",
            f"active ports are of {join_unique(sorted(layers))}",
            "the Ethernet ones are often for storage; NCCL_IB_HCA chooses",
        )
    for port in ports:
        if port.errors:
            counts = join_unique(f"{name} {count}" for name, count in port.errors.items())
            yield make_warning(
                "rdma errors",
                f"{_name(port)}: {counts}",
                f"a bad cable or transceiver; messages are sent again; {_ONE_HOST}",
                "watch whether the counts rise under load (perfquery), clean or replace the cable",
            )


def _check_efa(facts: Facts, efa: Sequence[RdmaPort]) -> Iterator[Finding]:
    plugins = facts.network.plugins
    if not any(name in ("libnccl-net.so", "libnccl-net-ofi.so") for name in plugins):
        yield make_warning(
            "efa plugin",
            f"{len(efa)} EFA devices, and no libnccl-net.so or libnccl-net-ofi.so on the library path",
            f"NCCL cannot use EFA without aws-ofi-nccl and falls back to TCP; {_ONE_HOST}",
            "install aws-ofi-nccl, or put its folder into LD_LIBRARY_PATH",
        )
    else:
        yield make_passed("efa plugin", f"{len(efa)} EFA devices; plugins: {join_unique(plugins)}")


def _check_gpudirect(facts: Facts, efa: Sequence[RdmaPort]) -> Iterator[Finding]:
    modules = facts.system.modules
    if efa and len(efa) == len(facts.network.ports):
        return  # EFA registers GPU memory by DMA-BUF in its own driver
    if modules is None:
        yield make_unknown(
            "gpudirect rdma",
            "the loaded kernel modules cannot be listed",
            f"without GPUDirect RDMA traffic goes through the host's memory; {_ONE_HOST}",
            "look for nvidia_peermem in lsmod, or for 'GDRDMA' in NCCL's log",
        )
    elif "nvidia_peermem" in modules or "nv_peer_mem" in modules:
        yield make_passed("gpudirect rdma", "nvidia_peermem is loaded")
    else:
        yield make_info(
            "gpudirect rdma",
            "nvidia_peermem is not loaded",
            "NCCL then needs DMA-BUF for GPUDirect RDMA: Linux 5.12, the open kernel modules, CUDA 11.7; " + _ONE_HOST,
            "look for 'GDRDMA' in NCCL's log; if it is not there: modprobe nvidia-peermem",
        )


def _check_interfaces(facts: Facts) -> Iterator[Finding]:
    up = [interface for interface in facts.network.interfaces if interface.up]
    physical = [interface for interface in up if interface.physical]
    if len(physical) > 1:
        yield make_info(
            "interfaces",
            f"{join_unique(i.name for i in physical)} are up",
            f"NCCL and torch's store take the first that fits; {_ONE_HOST}",
            "name the one that all hosts reach: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME",
        )
    elif up:
        yield make_passed("interfaces", f"{join_unique(interface.name for interface in up)} up")
    named = facts.settings.get("NCCL_SOCKET_IFNAME", "")
    if named and not named.startswith("^"):
        wanted = [one.lstrip("=") for one in named.split(",") if one]
        present = ["lo", *(interface.name for interface in facts.network.interfaces)]
        if not any(
            name == one if named.startswith("=") else name.startswith(one) for one in wanted for name in present
        ):
            yield make_warning(
                "interfaces",
                f"NCCL_SOCKET_IFNAME is {named!r}, and this machine has {join_unique(present)}",
                "NCCL finds no interface and fails when a communicator opens",
                "name an interface that is there, or unset the variable",
            )
