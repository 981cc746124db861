"""A training step for tests to compare, and the parts of a step for tests to time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context
from suites.shared.llama import Llama, loss_of
from suites.shared.llm import Workload, sharded, training_step
from suites.shared.step import Step, Tensors

Trainer = Callable[[Context, Workload], tuple[Llama, Step[torch.Tensor]]]
"""Makes the model as a rank holds it, and the step that trains it."""


class Trained(NamedTuple):
    """What a rank has after training."""

    losses: list[float]
    parameters: Tensors
    """Whole."""


def fully_sharded(ctx: Context, work: Workload) -> tuple[Llama, Step[torch.Tensor]]:
    """FSDP2's model and step."""
    model = sharded(ctx, work)
    return model, training_step(ctx, work, model)


def train(ctx: Context, *, work: Workload, steps: int, trainer: Trainer = fully_sharded) -> Trained:
    """Trains on the same tokens so many times.

    Args:
        ctx: the rank's context.
        work: the model, and what it is trained on.
        steps: how many.
        trainer: makes model and step.
    """
    model, step = trainer(ctx, work)
    losses = [step().item() for _ in range(steps)]
    return Trained(losses, {name: _whole(value) for name, value in model.named_parameters()})


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


def forward_backward(ctx: Context, *, work: Workload, alone: bool = False) -> Step[torch.Tensor]:
    """The same without the optimizer, which has nothing to wait for; returns the rank's own loss."""
    model = sharded(ctx, work, alone=alone)
    x, target = work.batch(ctx)

    def step() -> torch.Tensor:
        model.zero_grad()
        loss = loss_of(model(x), target)
        loss.backward()
        return loss.detach()

    return step


def within_rank(ctx: Context, *, work: Workload) -> Step[torch.Tensor]:
    """The same with each rank sharded over itself: its steps, and nothing to wait for."""
    return forward_backward(ctx, work=work, alone=True)


def communication(ctx: Context, *, work: Workload) -> Step[list[torch.Tensor]]:
    """What FSDP2 sends alone: each group's parameters gathered twice, and once for the last, its gradients scattered.

    Embedding, last norm and head are one group, whose parameters stay from forward to backward, as FSDP2 has it.
    """
    with torch.device("meta"):
        model = Llama(work.config, 0, 1)
    layers = [sum(value.numel() for value in layer.parameters()) for layer in model.layers.values()]
    rest = sum(value.numel() for value in model.parameters()) - sum(layers)
    groups = [(numel, 2) for numel in layers] + [(rest, 1)]
    share = max(-(-numel // ctx.world_size) for numel, _ in groups)
    gathered, scattered = (
        torch.zeros(share * ctx.world_size, dtype=dtype, device=ctx.device) for dtype in (work.compute, work.parameters)
    )
    part, shard = (torch.zeros(share, dtype=dtype, device=ctx.device) for dtype in (work.compute, work.parameters))

    def step() -> list[torch.Tensor]:
        for numel, times in groups:
            own = -(-numel // ctx.world_size)
            for _ in range(times):
                dist.all_gather_into_tensor(gathered[: own * ctx.world_size], part[:own])
            dist.reduce_scatter_tensor(shard[:own], scattered[: own * ctx.world_size])
        return [gathered, shard]

    return step
