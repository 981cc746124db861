"""Collectives and messages in a part of the world whose root or peer is named by its rank in the world; and defaults.

Lists of objects hold several, of other sizes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.step import Tensors


def far_pair(ctx: Context) -> dist.ProcessGroup:
    """The rank's group of two, whose ranks are half of the world apart: of four ranks 0 and 2, 1 and 3."""
    return ctx.mesh((2, ctx.world_size // 2), ("outer", "inner")).get_group("outer")


def in_a_pair(ctx: Context, *, xs: list[torch.Tensor], root: int) -> Tensors:
    """What a rank has of each collective and message in its far pair.

    Args:
        ctx: the rank's context.
        xs: tensors of all ranks of the world, of an even number of elements.
        root: the root's place in the pair.
    """
    group = far_pair(ctx)
    members = dist.get_process_group_ranks(group)
    source, peer = members[root], members[1 - group.rank()]
    x, mine = xs[ctx.rank].to(ctx.device), group.rank() == root
    sent, summed, half = x.clone(), x.clone(), torch.empty_like(x.chunk(2)[0])
    both = [torch.empty_like(x) for _ in range(2)]
    dist.broadcast(sent, source, group)
    dist.reduce(summed, source, group=group)
    dist.gather(x, both if mine else None, source, group)
    dist.scatter(half, list(x.chunk(2)) if mine else None, source, group)
    got, batched = torch.empty_like(x), torch.empty_like(x)
    if mine:
        dist.send(x, peer, group)
        dist.recv(got, peer, group)
    else:
        dist.recv(got, peer, group)
        dist.send(x, peer, group)
    operations = [dist.P2POp(dist.isend, -x, peer, group), dist.P2POp(dist.irecv, batched, peer, group)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    found = {"broadcast": sent, "scatter": half, "message": got, "batch": batched}
    return found | ({"reduce": summed, "gather": torch.cat(both)} if mine else {})


def things_of(rank: int) -> list[Any]:
    """Three objects of a rank, no two of which take as many bytes as those of another rank do."""
    return ["x" * (10 * rank + 1), {"rank": rank}, list(range(100 * rank))]


def objects_in_a_pair(ctx: Context, *, root: int) -> dict[str, Any]:
    """What a rank has of each collective and message of several objects in its far pair."""
    group = far_pair(ctx)
    members = dist.get_process_group_ranks(group)
    source, other = members[root], members[1 - root]
    mine, own = group.rank() == root, things_of(ctx.rank)
    sent = own if mine else [None] * 3
    dist.broadcast_object_list(sent, source, group)
    gathered: list[Any] = [None, None]
    dist.gather_object(own, gathered if mine else None, source, group)
    part: list[Any] = [None]
    dist.scatter_object_list(part, own[:2] if mine else None, source, group)
    found = {"broadcast": sent, "gather": gathered, "scatter": part}
    for way, batched in (("message", False), ("batch", True)):
        message: list[Any] = things_of(ctx.rank) if mine else [None] * 3
        if mine:
            dist.send_object_list(message, other, group, use_batch=batched)
        else:
            found[f"sender of {way}"] = dist.recv_object_list(message, source, group, use_batch=batched)
        found[way] = message
    return found


def by_default(ctx: Context, *, xs: list[torch.Tensor]) -> dict[str, Any]:
    """What a rank has of collectives and messages for which no root and no group is named.

    The last rank receives from whoever sends; it returns the tensors by their senders.
    """
    x, first, last = xs[ctx.rank].to(ctx.device), ctx.rank == 0, ctx.world_size - 1
    every = [torch.empty_like(x) for _ in range(ctx.world_size)]
    dist.gather(x, every if first else None)
    part = torch.empty_like(x[:1])
    dist.scatter(part, list(x[: ctx.world_size].split(1)) if first else None)
    found: dict[str, Any] = {"scatter": part}
    things: list[Any] = [None] * ctx.world_size
    dist.gather_object(things_of(ctx.rank), things if first else None)
    if first:
        found |= {"gather": torch.cat(every), "objects": things}
    piece: list[Any] = [None]
    dist.scatter_object_list(piece, things if first else None)
    found["piece"] = piece
    following = torch.empty_like(x)
    operations = [
        dist.P2POp(dist.isend, x, (ctx.rank + 1) % ctx.world_size),
        dist.P2POp(dist.irecv, following, (ctx.rank - 1) % ctx.world_size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    found["ring"] = following
    if ctx.device.type == "cpu":  # NCCL receives from a rank that is named
        if ctx.rank == last:
            for _ in range(last):
                message = torch.empty_like(x)
                found[f"from {dist.recv(message)}"] = message
        else:
            dist.send(x, last)
    return found
