"""Stages of a rank that have one weight together."""

from __future__ import annotations

import torch
from torch.distributed.pipelining import PipelineStage

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import RUNNERS, placed
from suites.pipeline_parallel.programs.traced import Product
from suites.pipeline_parallel.programs.training import linear_loss, step_twice
from suites.shared.step import Tensors, gradient_of


def train_tied(
    ctx: Context,
    *,
    schedule: str,
    weights: list[torch.Tensor],
    x: torch.Tensor,
    target: torch.Tensor,
    microbatches: int,
) -> Tensors:
    """Two steps, whose gradients add up; returns the rank's one.

    Args:
        ctx: the rank's context.
        schedule: a key of ``RUNNERS`` with two stages a rank.
        weights: of each rank.
        x: the whole batch; the second step has its double.
        target: what the loss multiplies the output with.
        microbatches: how many the batch is cut into.
    """
    count = 2 * ctx.world_size
    indices = placed(schedule, ctx.rank, ctx.world_size, count)
    modules = [Product(weights[ctx.rank].to(ctx.device)) for _ in indices]
    modules[1].weight = modules[0].weight
    stages = [PipelineStage(module, index, count, ctx.device) for index, module in zip(indices, modules, strict=True)]
    # Not scaled: torch would divide what both stages have by the microbatches twice.
    runner = RUNNERS[schedule](stages, microbatches, loss_fn=linear_loss, scale_grads=False)
    step_twice(ctx, runner, x, target, first=0 in indices, last=count - 1 in indices)
    return {"gradient": gradient_of(modules[0].weight)}
