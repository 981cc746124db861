"""What is sent over each way: a ring of messages and an all_reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.places import addends
from suites.shared.step import Step, StepOf

ADDENDS = torch.float32


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
