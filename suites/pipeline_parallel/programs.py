"""A training step of a model cut into R stages, one a rank, by torch.distributed.pipelining.

A stage is a list of layers, a layer a pair of weight and bias; each layer is linear and tanh.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from pytest_gpuperf import Context

Layers = list[tuple[torch.Tensor, torch.Tensor]]
Step = Callable[[], dict[str, torch.Tensor]]

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


def sequential(layers: Layers, device: torch.device) -> nn.Sequential:
    """The layers one after the other, on the device."""
    module = nn.Sequential()
    for weight, bias in layers:
        linear = nn.Linear(weight.shape[1], weight.shape[0], device=device, dtype=weight.dtype)
        linear.load_state_dict({"weight": weight, "bias": bias})
        module.extend([linear, nn.Tanh()])
    return module


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the parameters' gradients by name."""
    return {
        f"{name} gradient": value.grad.clone() for name, value in module.named_parameters() if value.grad is not None
    }


def train(
    ctx: Context,
    *,
    schedule: str,
    stages: list[Layers],
    x: torch.Tensor,
    target: torch.Tensor,
    microbatches: int,
    reduction: str,
    scale_grads: bool | None = None,
) -> Step:
    """Rank r runs stage r; its step returns the stage's gradients, on the last rank output and losses as well.

    Args:
        ctx: the rank's context.
        schedule: a key of ``SCHEDULES``.
        stages: the layers of each stage, one for each rank.
        x: input of the whole batch, which the first stage cuts into microbatches.
        target: what the last stage compares the output with.
        microbatches: how many; of one size.
        reduction: of the squared error over a microbatch, ``mean`` or ``sum``.
        scale_grads: divide the sum of the microbatches' gradients by their number. By default for ``mean``,
            where only that gives the gradient of the mean over the batch; for ``sum`` the sum is it.
    """
    module = sequential(stages[ctx.rank], ctx.device)
    stage = PipelineStage(module, ctx.rank, ctx.world_size, ctx.device)
    runner = SCHEDULES[schedule](
        stage,
        microbatches,
        loss_fn=nn.MSELoss(reduction=reduction),
        scale_grads=reduction == "mean" if scale_grads is None else scale_grads,
    )
    inputs = (x.to(ctx.device),) if stage.is_first else ()
    target = target.to(ctx.device)

    def step() -> dict[str, torch.Tensor]:
        module.zero_grad()
        losses: list[torch.Tensor] = []
        if stage.is_last:
            output = runner.step(*inputs, target=target, losses=losses)
            return {"output": output, "losses": torch.stack(losses), **gradients(module)}
        runner.step(*inputs)
        return gradients(module)

    return step


def train_twice(ctx: Context, **kwargs: object) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What the first step returns, which also exchanges shapes between the stages, and what the second does."""
    step = train(ctx, **kwargs)  # type: ignore[arg-type]  # passed on as they came
    return step(), step()
