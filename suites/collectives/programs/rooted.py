"""Collectives and messages with a root or a peer that is named by its place in a group; and those of Python objects."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.step import Tensors


def pair_of(ctx: Context) -> dist.ProcessGroup:
    """The rank's group of two: ranks 0 and 1, 2 and 3, and so on."""
    return ctx.mesh((ctx.world_size // 2, 2), ("outer", "inner")).get_group("inner")


def in_group(ctx: Context, *, xs: list[torch.Tensor], root: int, asynchronous: bool) -> Tensors:
    """What a rank has of each collective in a group of two.

    Args:
        ctx: the rank's context.
        xs: tensors of all ranks of the world, of an even number of elements.
        root: the root's place in the group.
        asynchronous: whether collectives return before they are done, where torch can do that.
    """
    group = pair_of(ctx)
    x = xs[ctx.rank].to(ctx.device)
    mine = group.rank() == root
    halves = list(x.chunk(2))
    flag: dict[str, Any] = {"group": group, "async_op": asynchronous}
    sent, summed = x.clone(), x.clone()
    both = [torch.empty_like(x) for _ in range(2)]
    gathered = [torch.empty_like(x) for _ in range(2)]
    half, scattered, least = (torch.empty_like(halves[0]) for _ in range(3))
    greatest, lower = x.clone(), torch.empty_like(halves[0])
    exchanged = [torch.empty_like(half) for _ in range(2)]
    largest = [x.clone(), -x]
    works = [
        dist.broadcast(sent, group_src=root, **flag),
        dist.reduce(summed, group_dst=root, **flag),
        dist.gather(x, both if mine else None, group_dst=root, **flag),
        dist.scatter(half, halves if mine else None, group_src=root, **flag),
        dist.all_gather(gathered, x, **flag),
        dist.reduce_scatter(scattered, halves, **flag),
        dist.reduce_scatter(least, halves, op=dist.ReduceOp.MIN, **flag),
        dist.reduce_scatter_tensor(lower, x, op=dist.ReduceOp.MIN, **flag),
        dist.reduce(greatest, group_dst=root, op=dist.ReduceOp.MAX, **flag),
    ]
    if ctx.device.type == "cuda":  # gloo exchanges no lists
        works.append(dist.all_to_all(exchanged, halves, **flag))
    else:
        works.append(dist.all_to_all_single(torch.cat(exchanged), x, **flag))
        exchanged = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch will deprecate it
        works.append(dist.all_reduce_coalesced(largest, op=dist.ReduceOp.MAX, **flag))
    works.append(dist.barrier(**flag))
    for work in works:
        if work is not None:
            work.wait()
    found = {
        "broadcast": sent,
        "scatter": half,
        "all_gather": torch.cat(gathered),
        "reduce_scatter": scattered,
        "least": torch.stack([least, lower]),
        "largest": torch.cat(largest),
    }
    if exchanged:
        found["all_to_all"] = torch.cat(exchanged)
    return found | ({"reduce": summed, "greatest": greatest, "gather": torch.cat(both)} if mine else {})


def messages(ctx: Context, *, xs: list[torch.Tensor], asynchronous: bool) -> Tensors:
    """The neighbour's tensor, and twice of it, which is sent first and has another tag; NCCL knows no tags.

    They come in one batch, and then one by one.
    """
    group = pair_of(ctx)
    peer = 1 - group.rank()
    x = xs[ctx.rank].to(ctx.device)
    once, twice = torch.empty_like(x), torch.empty_like(x)
    order = [(2 * x, twice, 2), (x, once, 1)]
    into = order if ctx.device.type == "cuda" else order[::-1]
    batch = {tag: torch.empty_like(x) for _, _, tag in into}
    operations = [dist.P2POp(dist.isend, mine, group=group, tag=tag, group_peer=peer) for mine, _, tag in order]
    operations += [
        dist.P2POp(dist.irecv, theirs, group=group, tag=tag, group_peer=peer) for tag, theirs in batch.items()
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    if asynchronous:
        sends = [dist.isend(mine, group=group, tag=tag, group_dst=peer) for mine, _, tag in order]
        receives = [dist.irecv(theirs, group=group, tag=tag, group_src=peer) for _, theirs, tag in into]
        for work in [*sends, *receives]:
            if work is not None:
                work.wait()
    else:
        for mine, theirs, tag in order:
            if group.rank() == 0:
                dist.send(mine, group=group, tag=tag, group_dst=peer)
                dist.recv(theirs, group=group, tag=tag, group_src=peer)
            else:
                dist.recv(theirs, group=group, tag=tag, group_src=peer)
                dist.send(mine, group=group, tag=tag, group_dst=peer)
    return {"once": once, "twice": twice, "once of a batch": batch[1], "twice of a batch": batch[2]}


def objects(ctx: Context, *, root: int) -> dict[str, Any]:
    """What a rank has of each collective of Python objects in a group of two; no two ranks give as many bytes."""
    group = pair_of(ctx)
    mine, own = group.rank() == root, ["rank" * (ctx.rank + 1), ctx.rank]
    sent: list[Any] = [own if mine else None]
    dist.broadcast_object_list(sent, group=group, group_src=root, device=ctx.device)
    every: list[Any] = [None, None]
    dist.all_gather_object(every, own, group=group)
    gathered: list[Any] = [None, None]
    dist.gather_object(own, gathered if mine else None, group=group, group_dst=root)
    part: list[Any] = [None]
    dist.scatter_object_list(part, [[own, place] for place in range(2)] if mine else None, group=group, group_src=root)
    message: list[Any] = [own if mine else None]
    if mine:
        dist.send_object_list(message, group=group, group_dst=1 - root, device=ctx.device)
    else:
        dist.recv_object_list(message, group=group, group_src=root, device=ctx.device)
    return {"broadcast": sent, "all_gather": every, "gather": gathered, "scatter": part, "message": message}


def unsorted(ctx: Context, *, xs: list[torch.Tensor]) -> Tensors:
    """Pairs far apart, which make their groups by themselves and count their ranks from the higher one down.

    Ranks 2 and 0 are a pair, and 3 and 1. The first of a pair broadcasts a tensor and its rank. The same pairs are
    subgroups of all ranks, one after the other.
    """
    half = ctx.world_size // 2
    pair = [ctx.rank % half + half, ctx.rank % half]
    group = dist.new_group(pair, use_local_synchronization=True, sort_ranks=False)
    x = xs[ctx.rank].to(ctx.device)
    sent = x.clone()
    dist.broadcast(sent, group=group, group_src=0)
    both = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(both, x, group=group)
    held = [ctx.rank if ctx.rank == pair[0] else -1]
    dist.broadcast_object_list(held, group=group, group_src=0, device=ctx.device)
    whole = dist.new_group([2, 0, 3, 1], sort_ranks=False)
    within, _ = dist.new_subgroups(2, whole)
    return {
        "broadcast": sent,
        "all_gather": torch.cat(both),
        "place": torch.tensor(dist.get_group_rank(group, ctx.rank)),
        "object": torch.tensor(held),
        "subgroup": torch.tensor(dist.get_process_group_ranks(within)),
    }
