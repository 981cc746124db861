"""Stages that pass on whole numbers beside the output, and a tensor that the next stage ignores."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, placed
from suites.shared.step import Tensors, gradient_of


def needs_no_gradient() -> bool:
    """Whether a stage of this torch may hand on what the next one gives no gradient of."""
    return hasattr(PipelineStage, "_get_grad_send_meta")


class Carrying(nn.Module):
    """A layer that adds the rows of a table which tokens choose; the next stage gets the next tokens.

    torch calls it once with any numbers as tokens, to see shapes.
    """

    def __init__(self, weight: torch.Tensor, table: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.table = nn.Parameter(weight), nn.Parameter(table)

    def forward(
        self, x: torch.Tensor, tokens: torch.Tensor, ignored: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The output, the next tokens, and the output's triple."""
        output = (x @ self.weight).abs() + functional.embedding(tokens % len(self.table), self.table)
        return output, (tokens + 1) % len(self.table), output * 3


def loss_of_two(outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """A sum over the output and its triple; the tokens only weigh rows."""
    output, tokens, triple = outputs
    return ((output + triple) * target * (tokens[:, None] + 1)).sum()


def train_carrying(
    ctx: Context,
    *,
    schedule: str,
    weights: list[torch.Tensor],
    tables: list[torch.Tensor],
    x: torch.Tensor,
    tokens: torch.Tensor,
    target: torch.Tensor,
    microbatches: int,
) -> Tensors:
    """Two steps, whose gradients add up; returns them, and on the rank of the last stage the outputs.

    Args:
        ctx: the rank's context.
        schedule: a key of ``RUNNERS``.
        weights: of each stage's layer.
        tables: of each stage.
        x: the whole batch.
        tokens: a whole number for each of its rows.
        target: of the loss.
        microbatches: how many the batch is cut into.
    """
    count = len(weights)
    indices = placed(schedule, ctx.rank, ctx.world_size, count)
    modules = {index: Carrying(weights[index].to(ctx.device), tables[index].to(ctx.device)) for index in indices}
    stages = [PipelineStage(module, index, count, ctx.device) for index, module in modules.items()]
    given = stages[0] if schedule in SINGLE else stages
    runner = RUNNERS[schedule](given, microbatches, loss_fn=loss_of_two, scale_grads=False)
    results: Tensors = {}
    for step in (1, 2):
        inputs = (step * x.to(ctx.device), tokens.to(ctx.device)) if 0 in modules else ()
        last: dict[str, Any] = {"target": target.to(ctx.device)} if count - 1 in modules else {}
        outputs = runner.step(*inputs, **last)
        if last:
            results |= dict(zip(("output", "tokens", "triple"), (one.detach() for one in outputs), strict=True))
    for index, module in modules.items():
        results |= {f"stage {index}, {name}": gradient_of(value) for name, value in module.named_parameters()}
    return results
