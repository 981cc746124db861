"""Stages that put off their weights' gradients themselves, and tell torch how to make up for it later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, placed
from suites.pipeline_parallel.programs.training import linear_loss, step_twice
from suites.shared.step import Tensors, gradient_of

Waiting = list[tuple[torch.Tensor, torch.Tensor]]
"""Inputs of a product and gradients of its output, of which the weight's gradient is still to be made."""


class _Product(torch.autograd.Function):
    """A product whose backward makes the input's gradient alone."""

    @staticmethod
    def forward(function: Any, x: torch.Tensor, weight: torch.Tensor, waiting: Waiting) -> torch.Tensor:
        function.save_for_backward(x, weight)
        function.waiting = waiting
        return x @ weight

    @staticmethod
    def backward(function: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, weight = function.saved_tensors
        function.waiting.append((x, gradients[0]))
        return gradients[0] @ weight.T, None, None


class Deferred(nn.Module):
    """The magnitudes of a product."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.waiting: Waiting = []
        self.made: list[int] = []
        """How many microbatches each call has made up for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of a microbatch."""
        output: torch.Tensor = _Product.apply(x, self.weight, self.waiting).abs()  # type: ignore[no-untyped-call]
        return output

    def later(self) -> Callable[[], None]:
        """Makes the gradient of what waits now, when it is called."""
        waiting = list(self.waiting)
        self.waiting.clear()

        def make() -> None:
            self.made.append(len(waiting))
            for x, gradient in waiting:
                share = x.detach().T @ gradient
                self.weight.grad = share if self.weight.grad is None else self.weight.grad + share

        return make


def train_deferred(
    ctx: Context,
    *,
    schedule: str,
    weights: list[torch.Tensor],
    x: torch.Tensor,
    target: torch.Tensor,
    microbatches: int,
) -> Tensors:
    """Two steps, whose gradients add up; returns them, and how many microbatches were made up for at a time.

    Args:
        ctx: the rank's context.
        schedule: a key of ``RUNNERS``.
        weights: of each stage.
        x: the whole batch.
        target: what the loss multiplies the output with.
        microbatches: how many the batch is cut into.
    """
    count = len(weights)
    indices = placed(schedule, ctx.rank, ctx.world_size, count)
    modules = {index: Deferred(weights[index].to(ctx.device)) for index in indices}
    # Given what it takes and gives, torch does not run a stage before the first step, which would be made up for too.
    rows = len(x) // microbatches
    leaf = torch.zeros(rows, x.shape[1], dtype=x.dtype, device=ctx.device)
    needing = leaf.clone().requires_grad_()
    stages = [
        PipelineStage(
            module,
            index,
            count,
            ctx.device,
            input_args=needing if index else leaf,
            output_args=needing,
            dw_builder=module.later,
        )
        for index, module in modules.items()
    ]
    runner = RUNNERS[schedule](
        stages[0] if schedule in SINGLE else stages, microbatches, loss_fn=linear_loss, scale_grads=False
    )
    step_twice(ctx, runner, x, target, first=0 in modules, last=count - 1 in modules)
    found = {f"stage {index}": gradient_of(module.weight) for index, module in modules.items()}
    return found | {f"stage {index}, made": torch.tensor(module.made) for index, module in modules.items()}
