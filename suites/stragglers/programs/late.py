"""A step of work that one rank is late with: by itself, and followed by a collective that waits for it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.delays import Delay
from suites.shared.step import Step

WIDTH = 64


def work(ctx: Context, *, late: int | None, delay: float) -> Step[torch.Tensor]:
    """A product of matrices, and on the late rank a delay before it; nobody waits for anybody.

    Args:
        ctx: the rank.
        late: the rank that is late; None if none is.
        delay: seconds.
    """
    x = matrix(ctx.rank).to(ctx.device)
    wait = Delay(ctx, delay) if ctx.rank == late else None

    def step() -> torch.Tensor:
        if wait is not None:
            wait()
        return x @ x

    return step


def work_then_sum(ctx: Context, *, late: int | None, delay: float) -> Step[torch.Tensor]:
    """The step of ``work``, then the sum of all ranks' products."""
    own = work(ctx, late=late, delay=delay)

    def step() -> torch.Tensor:
        product = own()
        dist.all_reduce(product)
        return product

    return step


def matrix(rank: int, *, width: int = WIDTH) -> torch.Tensor:
    """A rank's own, of whole numbers: its square is exact in float32, and in float16's inputs of TF32."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-15, 16, (width, width), generator=generator).float()
