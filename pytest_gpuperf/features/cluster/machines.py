"""The machines of a cluster as one: what they must have in common, and the name of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_gpuperf.hardware import network
from pytest_gpuperf.hardware.linkage import Linkage
from pytest_gpuperf.hardware.machine import Machine

_MUST_BE_ALIKE = {
    "gpu_name": "GPUs",
    "gpu_count": "GPUs' count",
    "topology": "links between GPUs",
    "mem_gib": "memory",
    "fabric": "network",
}


def find_difference(machines: Mapping[str, Machine]) -> str | None:
    """Which node's hardware differs from the first one's, and in what; None if all are alike.

    Args:
        machines: by the nodes' names, in their order.
    """
    facts = {name: {**machine.match, "fabric": machine.fabric} for name, machine in machines.items()}
    (first, like), *others = facts.items()
    for name, match in others:
        for field, words in _MUST_BE_ALIKE.items():
            if match.get(field) != like.get(field):
                return (
                    f"nodes {first} and {name} are unlike: {words} {like.get(field, 'none')} on {first}, "
                    f"{match.get(field, 'none')} on {name}"
                )
    return None


def find_shared_gpu(machines: Mapping[str, Machine]) -> str | None:
    """Return which nodes have the same GPU, and which GPU; None if no GPU is on two nodes.

    NCCL looks for a GPU with two ranks on one host only. Between hosts it runs, at a fraction of the speed.

    Args:
        machines: by the nodes' names.
    """
    nodes: dict[str, str] = {}
    for name, machine in machines.items():
        for uuid in machine.gpu_uuids:
            if uuid in nodes:
                return f"nodes {nodes[uuid]} and {name} have the same GPU {uuid}"
            nodes[uuid] = name
    return None


def merge_machines(machines: Mapping[str, Machine]) -> Machine:
    """All GPUs of a cluster's nodes, in the order of the nodes; that of the only node as it is.

    Between nodes no line rate is known, so metrics of several nodes have no physical limit.

    Args:
        machines: by the nodes' names.
    """
    first = next(iter(machines.values()))
    if len(machines) == 1 or not first.gpus:
        return first
    labels = {"" if machine.linkage is None else machine.linkage.label for machine in machines.values()}
    gpus = tuple(gpu for machine in machines.values() for gpu in machine.gpus)
    everything = tuple(uuid for machine in machines.values() for uuid in machine.everything)
    return Machine(
        gpus,
        Linkage("network", "+".join(sorted(labels - {""})), None),
        environ_multicast=all(machine.environ_multicast for machine in machines.values()),
        driver=first.driver,
        everything=everything,
        node_keys=tuple(f"{machine.key}-{machine.fabric}" for machine in machines.values()),
        node_gpus=tuple(len(machine.gpus) for machine in machines.values()),
        network=network.merge_networks({name: machine.network for name, machine in machines.items()}),
        memory_told=_find_least(machine.memory_told for machine in machines.values()),
        host_told=_find_least(machine.host_told for machine in machines.values()),
    )


def _find_least(rates: Iterable[float | None]) -> float | None:
    """The lowest; None if one is unknown."""
    told = list(rates)
    known = [rate for rate in told if rate is not None]
    return min(known) if len(known) == len(told) else None
