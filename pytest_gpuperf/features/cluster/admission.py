"""Which nodes of a cluster may be in one run: they reach each other, and have what they must have in common."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from pytest_gpuperf.features.cluster.failures import ClusterError
from pytest_gpuperf.features.cluster.machines import find_difference, find_shared_gpu
from pytest_gpuperf.features.cluster.member import Member
from pytest_gpuperf.hardware.machine import Machine


def require_alike(members: Sequence[Member], machines: Mapping[str, Machine], *, gpus: bool, unlike: bool) -> None:
    """Refuses nodes that cannot be in one run.

    Args:
        members: the nodes.
        machines: by the nodes' names, in their order.
        gpus: whether the run uses GPUs.
        unlike: whether nodes may differ in hardware.

    Raises:
        ClusterError: a node does not fit; says which, why, and the cure.
    """
    require_reachable({member.name: member.address for member in members})
    require_same_software(members)
    if not gpus:
        return
    require_reserved_gpus(members)
    if (found := find_shared_gpu(machines)) is not None:
        raise ClusterError(
            f"{found}: hide the other nodes' GPUs from each node, by its container's devices, or by "
            "CUDA_VISIBLE_DEVICES before Ray starts there"
        )
    if not unlike and (found := find_difference(machines)) is not None:
        raise ClusterError(f"{found}: take such a node out of the cluster, or pass --allow-unlike-nodes")


def require_reachable(addresses: Mapping[str, str]) -> None:
    """Refuses nodes that have an address of loopback if others have another one.

    Args:
        addresses: of the nodes, by their names.

    Raises:
        ClusterError: other nodes do not reach one of them; says which, and how it is started right.
    """
    inside = {name: address for name, address in addresses.items() if ipaddress.ip_address(address).is_loopback}
    if 0 < len(inside) < len(addresses):
        name, address = next(iter(inside.items()))
        raise ClusterError(
            f"node {name} is in the cluster as {address}, which is its own loopback, so other nodes do not reach it: "
            "its /etc/hosts gives that for its host name. Stop Ray there, and start it with `ray start "
            "--node-ip-address=ADDRESS`, its address in the nodes' network"
        )


def require_same_software(members: Sequence[Member]) -> None:
    """Refuses nodes with other versions than the first one's.

    Raises:
        ClusterError: a version differs; says which, and where.
    """
    first = members[0]
    for member in members[1:]:
        for name, version in first.facts.software.items():
            other = member.facts.software.get(name, "")
            if other != version:
                raise ClusterError(
                    f"node {member.name} has {name} {other or '(none)'}, and node {first.name} has "
                    f"{version or '(none)'}: what one pickles the other must read, so install the same on all nodes"
                )


def require_reserved_gpus(members: Sequence[Member]) -> None:
    """Refuses nodes whose processes see another number of GPUs than Ray has reserved there.

    Raises:
        ClusterError: a node's numbers differ.
    """
    for member in members:
        seen = len(member.facts.machine.gpu_uuids)
        if seen != member.slots:
            raise ClusterError(
                f"node {member.name}: Ray has reserved {member.slots} GPUs for the run, and the run's process there "
                f"sees {seen}. Start Ray's daemon with as many as there are (`ray start --num-gpus`), and without "
                "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
            )
