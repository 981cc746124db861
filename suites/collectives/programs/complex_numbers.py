"""Collectives and messages of complex numbers, which travel as pairs of real ones; and messages from anybody."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.step import Tensors


def collectives(ctx: Context, *, xs: list[torch.Tensor], root: int) -> Tensors:
    """What a rank has of each; torch gathers and scatters none to and from one rank.

    Args:
        ctx: the rank's context.
        xs: tensors of all ranks, which the number of ranks divides.
        root: the rank that sends or gets what others do not.
    """
    x = xs[ctx.rank].to(ctx.device)
    mine, count = ctx.rank == root, ctx.world_size
    parts = list(x.chunk(count))
    summed, sent, reduced = x.clone(), x.clone(), x.clone()
    dist.all_reduce(summed)
    dist.broadcast(sent, root)
    dist.reduce(reduced, root)
    every = [torch.empty_like(x) for _ in range(count)]
    dist.all_gather(every, x)
    whole = x.new_empty(count * len(x), *x.shape[1:])
    dist.all_gather_into_tensor(whole, x)
    share, second = (torch.empty_like(parts[0]) for _ in range(2))
    dist.reduce_scatter(share, parts)
    dist.reduce_scatter_tensor(second, x)
    exchanged = torch.empty_like(x)
    dist.all_to_all_single(exchanged, x)
    received = torch.empty_like(x)
    to, source = (ctx.rank + 1) % count, (ctx.rank - 1) % count
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, received, source)]):
        work.wait()
    again = torch.empty_like(x)
    if mine:
        dist.send(x, to)
    elif ctx.rank == (root + 1) % count:
        dist.recv(again, root)
    return {
        "all_reduce": summed,
        "broadcast": sent,
        "all_gather": torch.cat(every),
        "all_gather_into_tensor": whole,
        "reduce_scatter": share,
        "reduce_scatter_tensor": second,
        "all_to_all_single": exchanged,
        "batch_isend_irecv": received,
        **({"reduce": reduced} if mine else {}),
        **({"recv": again} if ctx.rank == (root + 1) % count else {}),
    }


def from_anybody(ctx: Context, *, xs: list[torch.Tensor]) -> Tensors:
    """Rank 0 takes the other ranks' tensors as they come, twice from each; returns them by who sent them.

    Args:
        ctx: the rank's context.
        xs: tensors of all ranks.
    """
    x = xs[ctx.rank].to(ctx.device)
    if ctx.rank:
        dist.send(x, 0)
        dist.send(2 * x, 0, tag=1)
        return {}
    found: Tensors = {}
    for tag in (0, 1):
        for _ in range(1, ctx.world_size):
            received = torch.empty_like(x)
            sender = dist.recv(received, tag=tag)
            found[f"{tag} from {sender}"] = received
    return found
