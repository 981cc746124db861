"""What a run asks Ray for: a bundle of resources for each node. Knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.features.cluster.failures import ClusterError


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of a cluster, as Ray knows it."""

    identity: str
    name: str
    """The user's, or its IP address; the same for no two nodes."""
    address: str
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """Bundles, each for a node of its own."""

    bundles: tuple[Mapping[str, float], ...]
    gpus: bool
    """Whether the run uses GPUs."""

    def __str__(self) -> str:
        said: dict[str, int] = {}
        for bundle in self.bundles:
            what = f"{bundle['GPU']:g} GPUs" if self.gpus else "a CPU"
            said[what] = said.get(what, 0) + 1
        return " and ".join(f"{count} node{'s' if count > 1 else ''} with {what}" for what, count in said.items())


def make_reservation(nodes: Sequence[RayNode], gpus: int | None) -> Reservation:
    """What a run with ``--gpus gpus`` asks for: GPUs of as few nodes as have them, or all nodes with a CPU.

    Args:
        nodes: those that are alive.
        gpus: how many GPUs the run uses; 0 for gloo; None for all that there are.

    Raises:
        ClusterError: the nodes do not have them; says which node has what.
    """
    if gpus == 0:
        count = sum(node.cpus >= 1 for node in nodes)
        if not count:
            raise ClusterError(f"no node of the cluster has a CPU for Ray: {_list(nodes)}")
        return Reservation(({"CPU": 1.0},) * count, gpus=False)
    there = sorted((node.gpus for node in nodes if node.gpus), reverse=True)
    if not there:
        raise ClusterError(f"the cluster has no GPU for Ray ({_list(nodes)}): pass --gpus 0 to run ranks with gloo")
    wanted = sum(there) if gpus is None else gpus
    if wanted > sum(there):
        raise ClusterError(f"--gpus {wanted}: the cluster has {sum(there)}: {_list(nodes)}")
    bundles = []
    for count in there:
        if wanted > 0:
            bundles.append({"GPU": float(min(count, wanted))})
            wanted -= count
    return Reservation(tuple(bundles), gpus=True)


def _list(nodes: Sequence[RayNode]) -> str:
    return ", ".join(f"{node.name} has {node.gpus} GPUs and {node.cpus} CPUs" for node in nodes)
