"""Two levels of ranks: those of a node, and those that have the same place on each node."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pytest_gpuperf import Context

AXES = ("across", "inside")


@dataclass(frozen=True, slots=True)
class Levels:
    """A rank's place: nodes have as many ranks each, and these are next to one another."""

    mesh: DeviceMesh
    nodes: int
    each: int
    """Ranks of a node."""
    node: int
    place: int
    """The rank's number on its node."""

    @classmethod
    def of(cls, ctx: Context, nodes: int) -> Levels:
        """The ranks on so many nodes; on one machine, as if they were on as many.

        Raises:
            ValueError: the nodes cannot have as many ranks each.
        """
        if ctx.world_size % nodes:
            raise ValueError(f"{ctx.world_size} ranks cannot be dealt evenly to {nodes} nodes")
        each = ctx.world_size // nodes
        return cls(ctx.mesh((nodes, each), AXES), nodes, each, *divmod(ctx.rank, each))

    @property
    def inside(self) -> dist.ProcessGroup:
        """The ranks of the node."""
        return self.mesh.get_group("inside")

    @property
    def across(self) -> dist.ProcessGroup:
        """The ranks at the same place of all nodes."""
        return self.mesh.get_group("across")

    def rank_at(self, node: int, place: int) -> int:
        """The rank at a place of a node; both numbers begin anew after the last one."""
        return node % self.nodes * self.each + place % self.each


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The place of a rank, by its context and by its groups."""

    node: int
    node_name: str
    local_rank: int
    num_nodes: int
    inside: list[int]
    """Ranks of its group of this name."""
    across: list[int]


def whereabouts(ctx: Context, *, nodes: int | None = None) -> Whereabouts:
    """The place of the rank.

    Args:
        ctx: the rank's context.
        nodes: how many there are, or are to be thought of; None for those that hold the ranks.
    """
    levels = Levels.of(ctx, nodes or ctx.num_nodes)
    groups = (dist.get_process_group_ranks(group) for group in (levels.inside, levels.across))
    return Whereabouts(ctx.node, ctx.node_name, ctx.local_rank, ctx.num_nodes, *groups)
