"""An optimizer whose state is split over the ranks, in symmetric memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_gpuperf import Context
from suites.shared.peer_memory import Allocate, allocate
from suites.shared.step import Tensors
from suites.symmetric_memory.programs.arena import ALIGNMENT, Arena

Steps = Callable[[], Tensors]


def optimizer_shards(
    ctx: Context,
    *,
    weights: torch.Tensor,
    gradients: list[list[torch.Tensor]],
    lr: float,
    momentum: float,
    allocate: Allocate = allocate,
) -> Steps:
    """SGD with momentum whose state is split over the ranks: R ranks, N weights, N/R momenta on each.

    The first stage of ZeRO (Rajbhandari et al., 2020, section 5.1), with gets for its reduce-scatter and puts for its
    all-gather: weights and gradients lie in symmetric memory, a rank reads its part of all gradients, updates its
    part of the weights, and writes that into every rank's weights.

    Args:
        ctx: the rank's context.
        weights: all of them, flat.
        gradients: for each step, each rank's.
        lr: the learning rate.
        momentum: of SGD.
        allocate: gives the symmetric memory.
    """
    dtype, numel = weights.dtype, weights.numel()
    nbytes = 2 * (weights.nbytes + ALIGNMENT)
    arena, memory = Arena(nbytes), allocate(ctx, nbytes)
    weights_at, gradients_at = (arena.allocate(weights.nbytes) // dtype.itemsize for _ in range(2))
    start, size = _part(numel, ctx)
    mine = torch.nn.Parameter(weights.to(ctx.device)[start : start + size].clone())
    optimizer = torch.optim.SGD([mine], lr=lr, momentum=momentum)

    def part(rank: int, at: int) -> torch.Tensor:
        return memory.buffer(rank, (size,), dtype, at + start)

    def step() -> Tensors:
        memory.buffer(ctx.rank, (numel,), dtype, weights_at).copy_(weights)
        for of_ranks in gradients:
            memory.buffer(ctx.rank, (numel,), dtype, gradients_at).copy_(of_ranks[ctx.rank])
            memory.barrier()
            mine.grad = torch.stack([part(rank, gradients_at) for rank in range(ctx.world_size)]).mean(dim=0)
            optimizer.step()
            for rank in range(ctx.world_size):
                part(rank, weights_at).copy_(mine.detach())
            memory.barrier()
        state = optimizer.state[mine].get("momentum_buffer")
        assert state is not None
        return {"weights": memory.buffer(ctx.rank, (numel,), dtype, weights_at).clone(), "momenta": state.clone()}

    return step


def _part(numel: int, ctx: Context) -> tuple[int, int]:
    """The start and length of this rank's part: those of torch.chunk, empty ones for the ranks after them."""
    each = -(-numel // ctx.world_size)
    start = min(ctx.rank * each, numel)
    return start, min(each, numel - start)
