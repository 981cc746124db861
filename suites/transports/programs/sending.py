"""What is sent over each way: a ring of messages and an all_reduce; and what NCCL says about the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from pytest_gpuperf import Context, NcclLog
from suites.shared.bits import fill_with_bits
from suites.shared.places import addends
from suites.shared.step import Step

ADDENDS = torch.float32

StepOf = Callable[[int], Step[torch.Tensor]]


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
        count = nbytes // ADDENDS.itemsize
        x = addends(count, dtype=ADDENDS, rank=ctx.rank, ranks=ctx.world_size, device=ctx.device)

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
