"""Messages around a ring of ranks, through torch.distributed's sends and receives, at many sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.bits import fill_with_bits
from suites.shared.step import Step, StepOf


def neighbours(ctx: Context) -> tuple[int, int]:
    """The rank after this one, and the rank before."""
    return (ctx.rank + 1) % ctx.world_size, (ctx.rank - 1) % ctx.world_size


def sent_bytes(ctx: Context, nbytes: int) -> torch.Tensor:
    """What the rank sends: random bits of its own."""
    source = torch.empty(nbytes, dtype=torch.uint8, device=ctx.device)
    fill_with_bits(source, stream=ctx.rank)
    return source


def ring(ctx: Context, *, sizes: Sequence[int], ends: tuple[int, int] | None = None) -> StepOf:
    """Each rank sends so many bytes to the next, and receives as many from the one before.

    Args:
        ctx: the rank's context.
        sizes: in bytes, the largest last.
        ends: the rank that it sends to and the one that it receives from; None: its neighbours among all ranks.
    """
    source = sent_bytes(ctx, sizes[-1])
    destination = torch.empty_like(source)
    following, before = ends or neighbours(ctx)

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        sent, received = source[:nbytes], destination[:nbytes].zero_()

        def step() -> torch.Tensor:
            operations = [dist.P2POp(dist.isend, sent, following), dist.P2POp(dist.irecv, received, before)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            return received

        return step

    return step_of
