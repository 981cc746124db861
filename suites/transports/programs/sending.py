"""What is sent over each way: a ring of messages and an all_reduce; and what NCCL says about the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from pytest_gpuperf import Context, NcclLog
from suites.shared.bits import fill_with_bits
from suites.shared.step import Step

ADDENDS = torch.float32
HALF = 2**19
"""A rank's numbers are odd, and at most twice that: sums of 16 ranks are exact, and need all bits of a float32."""

StepOf = Callable[[int], Step[torch.Tensor]]


def addends(numel: int, *, rank: int, start: int = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """What a rank adds, from one place on."""
    places = torch.arange(start, start + numel, dtype=torch.int64, device=device)
    return (2 * ((40_503 * places + 7919 * rank) % (2 * HALF) - HALF) + 1).to(ADDENDS)


def ring(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """Each rank sends so many bytes to the next, and receives as many from the one before."""
    source = torch.empty(sizes[-1], dtype=torch.uint8, device=ctx.device)
    fill_with_bits(source, stream=ctx.rank)
    destination = torch.empty_like(source)
    following, before = (ctx.rank + 1) % ctx.world_size, (ctx.rank - 1) % ctx.world_size

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        sent, received = source[:nbytes], destination[:nbytes].zero_()

        def step() -> torch.Tensor:
            operations = [dist.P2POp(dist.isend, sent, following), dist.P2POp(dist.irecv, received, before)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            return received

        return step

    return step_of


def all_reduce(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """The sum of all ranks' float32 numbers, in place."""

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        x = addends(nbytes // ADDENDS.itemsize, rank=ctx.rank, device=ctx.device)

        def step() -> torch.Tensor:
            dist.all_reduce(x)
            return x

        return step

    return step_of


def connected(ctx: Context) -> NcclLog:
    """Connects the ranks by a sum and a ring of messages, and returns what NCCL says of it."""
    for program in (all_reduce, ring):
        program(ctx, sizes=[1024])(1024)()
    if ctx.device.type == "cuda":
        torch.cuda.synchronize()
    return ctx.nccl_log()
