"""Judges whether the nodes of a job can be one cluster: each finding names a node and the cure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.features.everywhere.facts import NodeFacts
from pytest_gpuperf.report.units import format_count

CLOCK_LIMIT = 2.0  # seconds; NTP keeps clocks within milliseconds
LEAST_SHARED_MEMORY = 256 * 2**20  # bytes; Docker gives 64 MiB unless it is asked for more
MUST_BE_SAME = ("Python", "torch", "numpy", "cloudpickle", "pytest-gpuperf", "ray")
_MIB = 2**20
_SAME = "install the same version on all nodes"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about a node that is not as it should be."""

    node: str
    what: str
    cure: str
    blocks: bool = True
    """Whether the command cannot run."""

    def __str__(self) -> str:
        return f"{'error' if self.blocks else 'warning'}: node {self.node}: {self.what}: {self.cure}"


@dataclass(frozen=True, slots=True)
class Node:
    """A node that has come."""

    name: str
    """Its host name, with the number of the node if two have the same."""
    facts: NodeFacts
    clock: float = 0.0
    """Seconds by which its clock is ahead of the first node's."""
    resolves: tuple[str, ...] = ()
    """Addresses to which the first node resolves its host name."""


@dataclass(frozen=True, slots=True)
class Unreached:
    """A connection between two nodes that was tried and failed."""

    origin: str
    target: str
    address: str
    port: int
    why: str


def list_findings(nodes: Sequence[Node], unreached: Sequence[Unreached] = ()) -> list[Finding]:
    """Return what is wrong with nodes, what blocks first.

    Args:
        nodes: all of them, the first one first.
        unreached: connections that failed.
    """
    found = [
        *_check_software(nodes),
        *_check_ports(unreached),
        *(one for node in nodes for one in _check_node(node, nodes[0])),
    ]
    found += [*_check_names(nodes), *_check_gpus(nodes), *_check_packets(nodes)]
    return sorted(found, key=lambda one: not one.blocks)


def _check_node(node: Node, first: Node) -> Iterator[Finding]:
    facts = node.facts
    if facts.ray_address:
        yield Finding(
            node.name,
            f"RAY_ADDRESS is {facts.ray_address}, so this is part of a running Ray cluster",
            "run `pytest --cluster auto` there instead, or `unset RAY_ADDRESS`",
        )
    if not _is_ipv4(facts.address):
        yield Finding(
            node.name,
            f"it reaches the first node from {facts.address}, and Ray's nodes here need IPv4",
            "give --head the IPv4 address of the first node",
        )
    elif ipaddress.ip_address(facts.address).is_loopback and node is not first:
        yield Finding(
            node.name,
            f"it reaches the first node from {facts.address}, which no other host reaches",
            "give --head a name or address of the first node in the nodes' network",
        )
    if abs(node.clock) > CLOCK_LIMIT:
        yield Finding(
            node.name,
            f"its clock is {abs(node.clock):.1f} s {'ahead of' if node.clock > 0 else 'behind'} that of {first.name}",
            "start its time service (`timedatectl set-ntp true`)",
            blocks=False,
        )
    if facts.shared_memory < LEAST_SHARED_MEMORY:
        yield Finding(
            node.name,
            f"/dev/shm has {facts.shared_memory // _MIB} MiB free; Ray and NCCL need {LEAST_SHARED_MEMORY // _MIB} MiB",
            "remove old files there; in a container pass `--shm-size=8g`, or mount an emptyDir with `medium: Memory`",
        )
    if facts.cores == 1 < facts.machine_cores:
        yield Finding(
            node.name,
            f"this process may use 1 of {facts.machine_cores} cores",
            "give the task all of them: `srun --cpus-per-task=N`, or `mpirun --bind-to none`",
            blocks=False,
        )
    for name, wanted in facts.wanted_interfaces.items():
        if not _has_interface(wanted, facts.interfaces):
            yield Finding(
                node.name,
                f"{name} is {wanted}, and its interfaces are {', '.join(facts.interfaces)}",
                f"unset {name}, so that ranks use {facts.interface or 'the interface of the address'}",
            )


def _check_software(nodes: Sequence[Node]) -> Iterator[Finding]:
    for name in (*MUST_BE_SAME, "NCCL"):
        versions = {node.name: node.facts.versions.get(name, "") for node in nodes}
        usual = Counter(versions.values()).most_common(1)[0][0]
        if name == "ray" and not usual:
            usual = next(filter(None, versions.values()), "any version from 2.52")
        for node, version in versions.items():
            if version != usual:
                others = next(
                    (f"{one} has {usual or '(none)'}" for one, its in versions.items() if its == usual),
                    f"needs {usual}",
                )
                yield Finding(
                    node,
                    f"it has {name} {version or '(none)'}, and {others}",
                    "install pytest-gpuperf[cluster] there" if name == "ray" and not version else _SAME,
                    blocks=name != "NCCL",
                )


def _check_ports(unreached: Sequence[Unreached]) -> Iterator[Finding]:
    for one in unreached:
        yield Finding(
            one.origin,
            f"it cannot reach node {one.target} at {one.address} port {one.port}: {one.why}",
            "let the nodes of a job reach each other on all TCP ports, with packets of their interface's size",
        )


def _check_names(nodes: Sequence[Node]) -> Iterator[Finding]:
    by_address = {node.facts.address: node.name for node in nodes}
    for node in nodes:
        facts = node.facts
        if not facts.own_name_is:
            yield Finding(
                node.name,
                f"it cannot resolve its own name {facts.host}, which gloo and torchrun do",
                f"add `{facts.address} {facts.host}` to its /etc/hosts",
                blocks=False,
            )
        elif len(nodes) > 1 and all(
            ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in facts.own_name_is
        ):
            yield Finding(
                node.name,
                f"it resolves its own name {facts.host} to {facts.own_name_is[0]}, at which no other host reaches it",
                f"make that line of its /etc/hosts `{facts.address} {facts.host}`",
                blocks=False,
            )
        for address in node.resolves:
            if by_address.get(address, node.name) != node.name:
                yield Finding(
                    node.name,
                    f"{nodes[0].name} resolves {facts.host} to {address}, which is node {by_address[address]}",
                    f"make the entry in DNS or in {nodes[0].name}'s /etc/hosts `{facts.address} {facts.host}`",
                    blocks=False,
                )


def _check_gpus(nodes: Sequence[Node]) -> Iterator[Finding]:
    kinds = {node.name: _say_count(node.facts.gpus) for node in nodes}
    usual = Counter(kinds.values()).most_common(1)[0][0]
    like = next(name for name, kind in kinds.items() if kind == usual)
    for name, kind in kinds.items():
        if kind != usual:
            yield Finding(
                name,
                f"it has {kind}, and {like} has {usual}",
                "look for a GPU that is missing (`nvidia-smi`, CUDA_VISIBLE_DEVICES, the job's request), or pass "
                "--allow-unlike-nodes to pytest",
                blocks=False,
            )


def _check_packets(nodes: Sequence[Node]) -> Iterator[Finding]:
    sizes = {node.name: node.facts.mtu for node in nodes if node.facts.mtu and node.facts.interface != "lo"}
    if not sizes:
        return
    usual = Counter(sizes.values()).most_common(1)[0][0]
    for node in nodes:
        size = sizes.get(node.name, usual)
        if size != usual:
            like = next(name for name, its in sizes.items() if its == usual)
            yield Finding(
                node.name,
                f"packets of {node.facts.interface} have at most {size} bytes (MTU), and those of {like} {usual}",
                f"run `ip link set {node.facts.interface} mtu {usual}` there, or set the same size on all nodes",
                blocks=False,
            )


def _say_count(gpus: Sequence[str]) -> str:
    if not gpus:
        return "no GPU"
    return " and ".join(f"{count} x {name}" for name, count in sorted(Counter(gpus).items()))


def _is_ipv4(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).version == 4
    except ValueError:
        return False


def _has_interface(wanted: str, there: Sequence[str]) -> bool:
    """Whether a value of NCCL_SOCKET_IFNAME, which is a list of prefixes, fits an interface."""
    if wanted.startswith("^"):
        return True
    exact = wanted.startswith("=")
    names = wanted.lstrip("=").split(",")
    return any(one == name if exact else one.startswith(name) for name in names for one in there)


def format_summary(nodes: Sequence[Node], launcher: str) -> str:
    """Return one line about nodes that can be used."""
    interfaces: Mapping[str, int] = Counter(node.facts.interface for node in nodes if node.facts.interface)
    over = f" over {', '.join(interfaces)}" if interfaces else ""
    names = ", ".join(node.name for node in nodes)
    kinds = ", ".join(Counter(_say_count(node.facts.gpus) for node in nodes))
    return f"{format_count(len(nodes), 'node')} ({names}) by {launcher}{over}, each with {kinds}"
