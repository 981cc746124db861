"""Ranks with several stages of a pipeline each, and FSDP2 within every stage: on whole numbers.

Pairs of ranks run a pipeline each, and ranks of one place share the parameters of its stages. A schedule gathers a
stage's parameters before it computes with them, and gives them back when other stages come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of

WIDTH, PIPELINES, PLACES = 3, 2, 2
"""Features, which two ranks cannot divide; pipelines, and ranks of each."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of several stages on a rank."""

    runner: Any
    of_place: int
    """Stages on a rank: with more than three, some of them are given back while others run."""
    down_and_up: bool = False
    """Whether the second half of the stages goes up the ranks again."""

    @property
    def stages(self) -> int:
        """Stages of a pipeline."""
        return PLACES * self.of_place

    def of(self, place: int) -> list[int]:
        """The stages of a place."""
        if self.down_and_up:
            return [place, self.stages - 1 - place]
        return list(range(place, self.stages, PLACES))


SCHEDULES: Mapping[str, Schedule] = {
    "Interleaved1F1B": Schedule(ScheduleInterleaved1F1B, 4),
    "InterleavedZeroBubble": Schedule(ScheduleInterleavedZeroBubble, 2),
    "ZBVZeroBubble": Schedule(ScheduleZBVZeroBubble, 2, down_and_up=True),
}


def cannot_run(schedule: str, backend: str) -> bool:
    """Whether stages that follow each other on one rank would have to send from the rank to itself."""
    return SCHEDULES[schedule].down_and_up and backend == "gloo" and not hasattr(PipelineStage, "_warmup_forward_vote")


class Scaled(nn.Module):
    """What comes in, and a product of it by which a scale and the product's own layer have gradients."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False, dtype=weight.dtype, device=weight.device)
        self.layer.load_state_dict({"weight": weight})
        self.scale = nn.Parameter(scale.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the stage, for some rows."""
        output: torch.Tensor = x + self.layer(x) * self.scale
        return output


def _sharded(stage: Scaled, mesh: DeviceMesh, reshard: bool) -> None:
    """Applies FSDP2, with the layer as a separate unit."""
    fully_shard(stage.layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(stage, mesh=mesh, reshard_after_forward=reshard)


def _replicated(stage: Scaled, mesh: DeviceMesh, reshard: bool) -> None:
    """FSDP2's form of DistributedDataParallel."""
    from torch.distributed._composable.replicate_with_fsdp import replicate

    replicate(stage.layer, mesh=mesh)
    replicate(stage, mesh=mesh)


WAYS: Mapping[str, Callable[[Scaled, DeviceMesh, bool], None]] = {"sharded": _sharded, "replicated": _replicated}


def weighed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The loss: the target is the output's gradient."""
    return (output * target).sum()


def train_chunks(
    ctx: Context,
    *,
    schedule: str,
    way: str,
    reshard: bool,
    microbatches: int,
    stages: list[tuple[torch.Tensor, torch.Tensor]],
    batches: list[tuple[torch.Tensor, torch.Tensor]],
) -> list[Tensors]:
    """Steps that move each parameter by the sign of its gradient.

    Args:
        ctx: the rank's context.
        schedule: a key of ``SCHEDULES``.
        way: a key of ``WAYS``.
        reshard: whether a unit gives its parameters back after each forward.
        microbatches: of a pipeline's share of the batch.
        stages: the weights and the scale of each.
        batches: rows and targets of each step, for all pipelines.

    Returns:
        For each step, whole: gradients and parameters of the rank's stages, and of the last stage the output. How many
        stages are still gathered after the step is in ``gathered``, and how many were while one of them ran, at most,
        in ``most gathered``.
    """
    mesh = ctx.mesh((PIPELINES, PLACES), ("pipelines", "places"))
    pipeline, place = mesh.get_local_rank("pipelines"), mesh.get_local_rank("places")
    of, group = SCHEDULES[schedule], mesh["places"].get_group()
    modules = {}
    for index in of.of(place):
        weight, scale = (tensor.to(ctx.device) for tensor in stages[index])
        modules[index] = Scaled(weight, scale)
        WAYS[way](modules[index], mesh["pipelines"], reshard)

    def gathered() -> int:
        return sum(not isinstance(module.layer.weight, DTensor) for module in modules.values())

    seen: list[int] = []
    for module in modules.values():
        module.register_forward_hook(lambda *_: seen.append(gathered()))
    runner = of.runner(
        [PipelineStage(module, index, of.stages, ctx.device, group=group) for index, module in modules.items()],
        microbatches,
        loss_fn=weighed,
    )
    told = []
    for x, target in batches:
        seen.clear()
        x, target = (rows.chunk(PIPELINES)[pipeline].to(ctx.device) for rows in (x, target))
        output = runner.step(
            *([x] if 0 in modules else []), **({"target": target} if of.stages - 1 in modules else {}), losses=[]
        )
        found = {"gathered": torch.tensor(gathered()), "most gathered": torch.tensor(max(seen))}
        for index, module in modules.items():
            for name, value in module.named_parameters(f"stage {index}"):
                gradient = gradient_of(value, name)
                with torch.no_grad():
                    value.sub_(gradient.sign())
                found |= {f"{name} gradient": _whole(gradient), name: _whole(value)}
                value.grad = None
        told.append(found | ({"output": output.detach()} if of.stages - 1 in modules else {}))
    return told


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
