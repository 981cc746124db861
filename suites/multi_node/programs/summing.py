"""A sum over all ranks of all nodes, in place: by one collective, and by the two levels one after the other.

Of N bytes and nodes of L ranks, the second way sends N / L bytes of each rank over the network, and N over the links.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.multi_node.programs.levels import Levels
from suites.shared.places import addends
from suites.shared.step import Step


def flat(ctx: Context, *, nodes: int, numel: int, dtype: torch.dtype) -> Step[torch.Tensor]:
    """One all-reduce over all ranks.

    Args:
        ctx: the rank's context.
        nodes: as for ``hierarchical``.
        numel: elements.
        dtype: of them.
    """
    x = _held(ctx, numel, numel, dtype)

    def step() -> torch.Tensor:
        dist.all_reduce(x)
        return x

    return step


def hierarchical(ctx: Context, *, nodes: int, numel: int, dtype: torch.dtype) -> Step[torch.Tensor]:
    """A reduce-scatter inside each node, an all-reduce of the shards across nodes, an all-gather inside.

    Args:
        ctx: the rank's context.
        nodes: how many there are.
        numel: elements; they need not divide by the ranks of a node.
        dtype: of them.
    """
    levels = Levels.of(ctx, nodes)
    inside, across = levels.inside, levels.across
    of_shard = -(-numel // levels.each)
    padded = _held(ctx, numel, of_shard * levels.each, dtype)
    shard = padded.new_empty(of_shard)

    def step() -> torch.Tensor:
        dist.reduce_scatter_tensor(shard, padded, group=inside)
        dist.all_reduce(shard, group=across)
        dist.all_gather_into_tensor(padded, shard, group=inside)
        return padded[:numel]

    return step


def _held(ctx: Context, numel: int, padded: int, dtype: torch.dtype) -> torch.Tensor:
    """The rank's addends, and zeros behind them."""
    held = torch.zeros(padded, dtype=dtype, device=ctx.device)
    held[:numel] = addends(numel, dtype=dtype, rank=ctx.rank, ranks=ctx.world_size, device=ctx.device)
    return held
