"""Messages of one pair of ranks after another, which name a rank that all reach slowly, and sums of some ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, NcclLog
from suites.shared.bits import fill_with_bits
from suites.shared.delays import Delay
from suites.shared.places import addends
from suites.shared.step import Step

Pair = tuple[int, int]

APART = 1
"""The rank that is a node of its own for NCCL."""
ENVIRON = {
    "NCCL_HOSTID": f"pod-{{rank=={APART}}}",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
}
"""Lets NCCL reach that rank's GPU by sockets alone, and the others as it likes best."""
BEHIND = "NET/Socket"


def exchange(
    ctx: Context, *, pair: Pair, nbytes: int, late: int | None = None, delay: float = 0.0
) -> Step[torch.Tensor]:
    """Two ranks send each other so many bytes, and the others nothing.

    Args:
        ctx: the rank.
        pair: the two.
        nbytes: each way.
        late: the rank that is late with it, as if its link were slow; None if none is.
        delay: seconds.
    """
    if ctx.rank not in pair:
        nothing = torch.empty(0, dtype=torch.uint8, device=ctx.device)
        return lambda: nothing
    other = pair[1 - pair.index(ctx.rank)]
    sent, received = (torch.empty(nbytes, dtype=torch.uint8, device=ctx.device) for _ in range(2))
    fill_with_bits(sent, stream=ctx.rank)
    received.zero_()
    wait = Delay(ctx, delay) if ctx.rank == late else None

    def step() -> torch.Tensor:
        if wait is not None:
            wait()
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]
        ):
            work.wait()
        return received

    return step


def sum_among(ctx: Context, *, among: Sequence[int], nbytes: int) -> Step[torch.Tensor]:
    """The sum of some ranks' numbers, in place; the others have no part in it."""
    group = ctx.group if len(among) == ctx.world_size else dist.new_group(list(among))
    if ctx.rank not in among:
        nothing = torch.empty(0, device=ctx.device)
        return lambda: nothing
    numel, place = nbytes // torch.float32.itemsize, list(among).index(ctx.rank)
    x = addends(numel, dtype=torch.float32, rank=place, ranks=len(among), device=ctx.device)

    def step() -> torch.Tensor:
        dist.all_reduce(x, group=group)
        return x

    return step


def around(world_size: int) -> list[Pair]:
    """Each rank with the next one: every rank is in two pairs."""
    return [(rank, (rank + 1) % world_size) for rank in range(world_size)]


def behind(seconds: Mapping[Pair, float]) -> int:
    """The rank that is reached slowly by both of its neighbours; of a rank beside it only one link is slow.

    Args:
        seconds: of each pair around a ring of three ranks or more.
    """
    ranks = sorted({rank for pair in seconds for rank in pair})
    return max(ranks, key=lambda rank: min(taken for pair, taken in seconds.items() if rank in pair))


def require_one_apart(logs: Sequence[NcclLog]) -> None:
    """Skips the test unless NCCL reaches that rank by sockets, and no other: a variable only asks."""
    ways = {
        (one.sender, one.receiver): one.transport
        for rank, log in enumerate(logs)
        for one in log.connections
        if one.sender == rank
    }
    wrong = sorted(pair for pair, way in ways.items() if way.startswith(BEHIND) is not (APART in pair))
    if wrong or not ways:
        names = ", ".join(f"{pair[0]} -> {pair[1]} {ways[pair]}" for pair in wrong) or "nothing"
        pytest.skip(f"NCCL does not reach rank {APART} alone by {BEHIND} here: its log has {names}")
    nodes = {one.nodes for log in logs for one in log.communicators}
    if nodes != {2}:
        pytest.skip(f"NCCL sees {sorted(nodes)} nodes here, expected 2")
