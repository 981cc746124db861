"""A step of an optimizer whose state is split over the ranks, in two ways: through symmetric memory, and by NCCL.

SGD with momentum in float32. Each rank updates its part of the weights with the mean of all ranks' gradients for it,
and then gets all new weights. Gradients stay the same, so that any number of steps has one right result.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.comparison import assert_close
from suites.shared.peer_memory import Allocate, allocate
from suites.shared.places import addends
from suites.shared.step import Step

DTYPE = torch.float32
LR, MOMENTUM = 2.0**-10, 0.5


class _Part:
    """A rank's part of the weights, and its optimizer."""

    def __init__(self, ctx: Context, numel: int) -> None:
        if numel % ctx.world_size:
            raise ValueError(f"{numel} weights cannot be split evenly over {ctx.world_size} ranks")
        self.size = numel // ctx.world_size
        self.weights = torch.nn.Parameter(torch.zeros(self.size, dtype=DTYPE, device=ctx.device))
        self._ranks = ctx.world_size
        self._optimizer = torch.optim.SGD([self.weights], lr=LR, momentum=MOMENTUM)

    def update(self, summed: torch.Tensor) -> None:
        """A step with the sum of all ranks' gradients."""
        self.weights.grad = summed.div_(self._ranks)
        self._optimizer.step()


def gradients(ctx: Context, numel: int) -> torch.Tensor:
    """The rank's own, of all weights: whole numbers, whose sum over the ranks is exact."""
    return addends(numel, dtype=DTYPE, rank=ctx.rank, ranks=ctx.world_size, device=ctx.device)


def by_nccl(ctx: Context, *, numel: int) -> Step[torch.Tensor]:
    """A reduce-scatter of the gradients, and an all-gather of the weights; gloo's on CPUs."""
    part, own = _Part(ctx, numel), gradients(ctx, numel)
    summed = torch.empty(part.size, dtype=DTYPE, device=ctx.device)
    weights = torch.zeros(numel, dtype=DTYPE, device=ctx.device)

    def step() -> torch.Tensor:
        dist.reduce_scatter_tensor(summed, own)
        part.update(summed)
        dist.all_gather_into_tensor(weights, part.weights.detach())
        return weights

    return step


def by_memory(ctx: Context, *, numel: int, allocate: Allocate = allocate) -> Step[torch.Tensor]:
    """Each rank reads its part of all ranks' gradients, and writes its weights to all ranks."""
    part = _Part(ctx, numel)
    memory = allocate(ctx, 2 * numel * DTYPE.itemsize)
    memory.buffer(ctx.rank, (numel,), DTYPE).copy_(gradients(ctx, numel))
    weights = memory.buffer(ctx.rank, (numel,), DTYPE, numel)
    weights.zero_()
    ordered = [(ctx.rank + away) % ctx.world_size for away in range(ctx.world_size)]  # not all from one rank at a time
    start, shape = ctx.rank * part.size, (part.size,)
    sources = [memory.buffer(rank, shape, DTYPE, start) for rank in ordered]
    targets = [memory.buffer(rank, shape, DTYPE, numel + start) for rank in ordered]
    summed = torch.empty(part.size, dtype=DTYPE, device=ctx.device)

    def step() -> torch.Tensor:
        memory.barrier()  # all gradients are there, and the last step's weights have been read
        summed.copy_(sources[0])
        for source in sources[1:]:
            summed.add_(source)
        part.update(summed)
        for target in targets:
            target.copy_(part.weights.detach(), non_blocking=True)
        memory.barrier()  # all parts are there
        return weights

    return step


def verify(ctx: Context, weights: torch.Tensor, steps: int) -> None:
    """All weights after so many steps: momentum adds up to 1 + m + m^2 ... of the mean gradient in each."""
    parts = [
        addends(weights.numel(), dtype=DTYPE, rank=rank, ranks=ctx.world_size, device=weights.device)
        for rank in range(ctx.world_size)
    ]
    mean = torch.stack(parts).double().mean(0)
    taken = sum((1 - MOMENTUM**number) / (1 - MOMENTUM) for number in range(1, steps + 1))
    # Each step rounds the velocity and the weights.
    rounding = torch.finfo(DTYPE).eps * steps
    assert_close(weights.double(), -LR * taken * mean, f"rank {ctx.rank}, step {steps}", rtol=rounding)
