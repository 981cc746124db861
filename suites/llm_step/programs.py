"""A training step for tests to compare, and the parts of a step for tests to time."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context
from suites.shared.deepspeed_engine import launched, load_deepspeed
from suites.shared.llama import Llama, loss_of
from suites.shared.llm import Workload, fused_adamw, mean_of_ranks, sharded, training_step
from suites.shared.step import Step, Tensors

Trainer = Callable[[Context, Workload], tuple[nn.Module, Step[torch.Tensor]]]
"""Makes the model as a rank holds it, and the step that trains it."""


class Trained(NamedTuple):
    """What a rank has after training."""

    losses: list[float]
    parameters: Tensors
    """Whole."""


def fully_sharded(ctx: Context, work: Workload) -> tuple[nn.Module, Step[torch.Tensor]]:
    """FSDP2's model and step."""
    model = sharded(ctx, work)
    return model, training_step(ctx, work, model)


def zero3_engine(ctx: Context, work: Workload) -> tuple[nn.Module, Step[torch.Tensor]]:
    """DeepSpeed's ZeRO-3, which splits what FSDP2 splits and sends the same in the same dtypes."""
    model = work.model(ctx.device)
    config = {
        "train_micro_batch_size_per_gpu": work.sequences,
        "gradient_accumulation_steps": 1,
        # 1.0 by default, and FSDP2 clips nothing unasked.
        "gradient_clipping": 0.0,
        "bf16": {"enabled": work.compute == torch.bfloat16},
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": ctx.device.type == "cuda",
            # By default small parameters stay whole.
            "stage3_param_persistence_threshold": 0,
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    with launched(ctx):
        engine, *_ = load_deepspeed(ctx).initialize(
            model=model, optimizer=fused_adamw(list(model.parameters())), dist_init_required=False, config=config
        )
    x, target = work.batch(ctx)

    @launched(ctx)
    def step() -> torch.Tensor:
        loss = loss_of(engine(x), target)
        engine.backward(loss)
        engine.step()
        return mean_of_ranks(ctx, loss)

    return engine.module, step


def zero3(ctx: Context, *, work: Workload) -> Step[torch.Tensor]:
    """The step of DeepSpeed's ZeRO-3; returns what FSDP2's does."""
    return zero3_engine(ctx, work)[1]


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
    if hasattr(tensor, "ds_id"):
        tensor = importlib.import_module("deepspeed.utils").safe_get_full_fp32_param(tensor)
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


def forward_backward(ctx: Context, *, work: Workload, alone: bool = False) -> Step[torch.Tensor]:
    """FSDP2's step without the optimizer, which has nothing to wait for; returns the rank's own loss."""
    model = sharded(ctx, work, alone=alone)
    x, target = work.batch(ctx)

    def step() -> torch.Tensor:
        model.zero_grad()
        loss = loss_of(model(x), target)
        loss.backward()
        return loss.detach()

    return step


def within_rank(ctx: Context, *, work: Workload) -> Step[torch.Tensor]:
    """Shards each rank over itself: ``forward_backward`` takes the same steps, and has nothing to wait for."""
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
