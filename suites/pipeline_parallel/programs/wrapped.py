"""Stages that data parallelism wraps: each replica of the pipeline has its part of the batch."""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, Layers, placed, sequential
from suites.pipeline_parallel.programs.training import linear_loss
from suites.shared.step import Tensors, gradient_of

Wrapper = Literal["DDP", "FSDP", "replicate"]


def wrap(module: nn.Sequential, wrapper: Wrapper, mesh: DeviceMesh) -> nn.Module:
    """The stage, whose gradients are the replicas' means from now on; its first layer is wrapped by itself too."""
    if wrapper == "DDP":
        return DistributedDataParallel(module, device_mesh=mesh)
    # Here, since older versions have another module.
    from torch.distributed._composable.replicate_with_fsdp import replicate

    # Schedules unshard stages themselves; a layer that is sharded after its forward has no gradient in some of them.
    make: Any = functools.partial(fully_shard, reshard_after_forward=False) if wrapper == "FSDP" else replicate
    make(module[0], mesh=mesh)
    make(module, mesh=mesh)
    return module


def train_wrapped(
    ctx: Context,
    *,
    schedule: str,
    wrapper: Wrapper,
    stages: list[Layers],
    x: torch.Tensor,
    target: torch.Tensor,
    microbatches: int,
    replicas: int,
) -> list[Tensors]:
    """The whole gradients of the rank's stages after each of two steps, which begin without gradients.

    Args:
        ctx: the rank's context.
        schedule: a key of ``RUNNERS``.
        wrapper: of the stages.
        stages: the layers of all stages.
        x: the whole batch; the second step has its double.
        target: what the loss multiplies the output with.
        microbatches: how many a replica's batch is cut into; gradients are divided by it.
        replicas: how many pipelines there are.
    """
    mesh = ctx.mesh((replicas, ctx.world_size // replicas), ("replica", "stage"))
    replica, place = mesh.get_local_rank("replica"), mesh.get_local_rank("stage")
    x, target = (part.chunk(replicas)[replica].to(ctx.device) for part in (x, target))
    indices = placed(schedule, place, mesh.size(1), len(stages))
    modules = {index: sequential(stages[index], ctx.device) for index in indices}
    made = [
        PipelineStage(
            wrap(module, wrapper, mesh["replica"]), index, len(stages), ctx.device, group=mesh.get_group("stage")
        )
        for index, module in modules.items()
    ]
    runner = RUNNERS[schedule](made[0] if schedule in SINGLE else made, microbatches, loss_fn=linear_loss)
    results = []
    # DistributedDataParallel takes no second step in a pipeline of this torch: it says so.
    for step in (1,) if wrapper == "DDP" else (1, 2):
        for module in modules.values():
            module.zero_grad()
        inputs = (step * x,) if 0 in indices else ()
        runner.step(*inputs, **({"target": target} if len(stages) - 1 in indices else {}))
        found = {
            f"stage {index}.{name}": gradient_of(value)
            for index, module in modules.items()
            for name, value in module.named_parameters()
        }
        results.append(
            {
                name: value.full_tensor() if isinstance(value, DTensor) else value.clone()
                for name, value in found.items()
            }
        )
    return results
