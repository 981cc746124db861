"""A layer whose sequence is split beside its tensors, in shards of replicas: on three axes, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of

AXES = ("replicate", "shard", "split")
SHAPE = (1, 2, 2)
WIDTH, HIDDEN = 4, 6
SHAPES: dict[str, tuple[int, ...]] = {
    "scale.weight": (WIDTH,),
    "up.weight": (HIDDEN, WIDTH),
    "up.bias": (HIDDEN,),
    "down.weight": (WIDTH, HIDDEN),
    "down.bias": (WIDTH,),
}
SPLIT = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
"""The dimension of a parameter that the last axis splits."""


class _Scale(nn.Module):
    """A norm that divides by nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Layer(nn.Module):
    """A scale, and two linear layers with a ReLU between them."""

    def __init__(self, weights: Tensors) -> None:
        super().__init__()
        self.scale = _Scale()
        self.up = nn.Linear(WIDTH, HIDDEN, dtype=torch.float64)
        self.down = nn.Linear(HIDDEN, WIDTH, dtype=torch.float64)
        self.load_state_dict(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output for sequences of vectors."""
        output: torch.Tensor = self.down(self.up(self.scale(x)).relu())
        return output


def train(ctx: Context, *, weights: Tensors, batches: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[Tensors]:
    """Steps that move each parameter by the sign of its gradient; what each leaves on the rank.

    Args:
        ctx: the rank's context.
        weights: the initial ones.
        batches: of each step all sequences and the gradients of all outputs; a sequence for each shard.
    """
    mesh = ctx.mesh(SHAPE, AXES)
    layer = Layer(weights).to(ctx.device)
    plan: dict[str, ParallelStyle] = {
        "scale": SequenceParallel(sequence_dim=1),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(layer, mesh["split"], plan)
    for module in (layer.up, layer):
        fully_shard(module, mesh=mesh["replicate", "shard"])
    place, part = ctx.rank // SHAPE[2], ctx.rank % SHAPE[2]
    told = []
    for batch in batches:
        x, grad = (whole[place : place + 1].chunk(SHAPE[2], 1)[part].to(ctx.device) for whole in batch)
        layer.zero_grad()
        output = layer(x)
        output.backward(grad)
        found = {"output": output.detach()}
        for name, value in layer.named_parameters():
            gradient = gradient_of(value, name)
            with torch.no_grad():
                value.sub_(gradient.sign())
            for told_as, tensor in ((f"{name} gradient", gradient), (name, value)):
                assert isinstance(tensor, DTensor)
                found[told_as] = tensor.to_local().detach().clone()
        told.append(found)
    for name, value in layer.named_parameters():
        assert isinstance(value, DTensor)
        told[-1][f"{name}, whole"] = value.full_tensor().detach()
    return told
