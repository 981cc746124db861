"""Which node gets how many of a test's ranks. Knows nothing of Ray."""

from __future__ import annotations

from dataclasses import dataclass


class NoPlaceError(ValueError):
    """The ranks do not fit on the nodes; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a run may put ranks on."""

    slots: tuple[int, ...]
    """For each node its GPUs; without GPUs, its CPUs as Ray counts them."""
    gpus: bool
    """Whether the slots are GPUs, of which no two ranks share one."""
    clustered: bool = True
    """Whether the nodes are those of a cluster; else they are this machine alone."""

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.slots)


def deal(world_size: int, capacity: Capacity, *, nodes: int | None = None, per_node: int | None = None) -> list[int]:
    """How many ranks each node gets, in the order of the nodes, without those that get none.

    Packed unless something else is asked for: as few nodes as hold the ranks. Ranks without GPUs that outnumber all
    CPUs share them, evenly.

    Args:
        world_size: how many ranks there are.
        capacity: what there is.
        nodes: on how many nodes they are to be, as many on each.
        per_node: how many of them each node is to have.

    Raises:
        NoPlaceError: they do not fit.
    """
    if not capacity.slots:
        raise NoPlaceError("no node is left")
    if nodes == 1 and not capacity.clustered:
        nodes = None  # this machine is that node
    if per_node is None and nodes is not None:
        if world_size % nodes:
            raise NoPlaceError(f"{world_size} ranks cannot be dealt evenly to {nodes} nodes")
        per_node = world_size // nodes
    if per_node is not None:
        return _deal_evenly(world_size, per_node, capacity)
    if not capacity.gpus and world_size > sum(capacity.slots):
        return _share(world_size, capacity.nodes)
    counts: list[int] = []
    for slots in capacity.slots:
        if (left := world_size - sum(counts)) > 0:
            counts.append(min(slots, left))
    if sum(counts) < world_size:
        where = f" on {capacity.nodes} nodes" if capacity.clustered else ""
        raise NoPlaceError(f"needs {world_size} GPUs, {sum(capacity.slots)} in use{where} (--gpus)")
    return counts


def _deal_evenly(world_size: int, per_node: int, capacity: Capacity) -> list[int]:
    if world_size % per_node:
        raise NoPlaceError(f"{world_size} ranks cannot be {per_node} on each node")
    needed = world_size // per_node
    fit = capacity.nodes if not capacity.gpus else sum(slots >= per_node for slots in capacity.slots)
    if needed > capacity.nodes or capacity.nodes == fit < needed:
        hint = "" if capacity.clustered else ": pass --cluster"
        raise NoPlaceError(f"needs {needed} nodes, the run has {capacity.nodes}{hint}")
    if needed > fit:
        each = " and ".join(str(slots) for slots in capacity.slots)
        wanted = "one node" if needed == 1 else f"{needed} nodes"
        raise NoPlaceError(f"needs {wanted} of {per_node} GPUs, the run's nodes have {each} (--gpus)")
    return [per_node] * needed


def _share(world_size: int, nodes: int) -> list[int]:
    least, more = divmod(world_size, nodes)
    return [count for node in range(nodes) if (count := least + (node < more))]
