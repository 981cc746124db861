"""What all ranks hold, brought together by broadcasts: a reference for results of other collectives."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from pytest_gpuperf import Context


def of_all_ranks(ctx: Context, own: torch.Tensor) -> Iterator[torch.Tensor]:
    """Each rank's tensor in turn; all ranks call it at the same time, with tensors of one shape and dtype."""
    for rank in range(ctx.world_size):
        tensor = own.clone() if rank == ctx.rank else torch.empty_like(own)
        dist.broadcast(tensor, src=rank)
        yield tensor


def mean_of_all_ranks(ctx: Context, own: torch.Tensor) -> torch.Tensor:
    """The mean over the ranks, in float64."""
    total = torch.zeros_like(own, dtype=torch.float64)
    for tensor in of_all_ranks(ctx, own):
        total += tensor
    return total / ctx.world_size
