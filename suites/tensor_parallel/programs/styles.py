"""Layers whose styles get inputs and give outputs in other layouts than usual, tuples, convolutions and derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

from pytest_gpuperf import Context
from suites.shared.sharding import local_tensor
from suites.shared.step import Tensors, gradient_of


@dataclass(frozen=True, slots=True)
class Around:
    """A style, and how it takes and gives tensors."""

    style: type[ColwiseParallel | RowwiseParallel]
    given: Placement
    returned: Placement


WAYS: Mapping[str, Around] = {
    "columns, a cut batch made whole": Around(ColwiseParallel, Shard(0), Replicate()),
    "columns, features made a batch": Around(ColwiseParallel, Shard(-1), Shard(0)),
    "rows, a whole input": Around(RowwiseParallel, Replicate(), Replicate()),
    "rows, a cut batch made features": Around(RowwiseParallel, Shard(0), Shard(-1)),
    "rows, a sequence made a batch": Around(RowwiseParallel, Shard(1), Shard(0)),
}


def layer(
    ctx: Context, *, way: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, grad: torch.Tensor
) -> Tensors:
    """The rank's part of the output and of its input's gradient, and the whole gradients of both parameters.

    Args:
        ctx: the rank's context.
        way: a key of ``WAYS``.
        x: the whole input.
        weight: of the layer.
        bias: of the layer.
        grad: of the whole output.
    """
    chosen = WAYS[way]
    module = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype, device=ctx.device)
    module.load_state_dict({"weight": weight, "bias": bias})
    style = chosen.style(input_layouts=chosen.given, output_layouts=chosen.returned)
    parallelize_module(module, ctx.mesh((ctx.world_size,)), style)
    own = _part(ctx, x, chosen.given).requires_grad_()
    output: torch.Tensor = module(own)
    output.backward(_part(ctx, grad, chosen.returned))
    gradients = {name: _whole(gradient_of(value, name)) for name, value in module.named_parameters()}
    return {"output": local_tensor(output), "input": gradient_of(own), **gradients}


def _part(ctx: Context, whole: torch.Tensor, placement: Placement) -> torch.Tensor:
    part = whole.chunk(ctx.world_size, placement.dim)[ctx.rank] if isinstance(placement, Shard) else whole
    return part.to(ctx.device).clone()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


class _Pair(nn.Module):
    """A sum and a product, and between them what is no tensor."""

    def forward(self, x: torch.Tensor, factor: int, other: torch.Tensor) -> tuple[torch.Tensor, int, torch.Tensor]:
        return x + factor * other, factor, x * other


def pair(ctx: Context, *, x: torch.Tensor, other: torch.Tensor, distributed: bool) -> tuple[Tensors, object]:
    """What a module returns of several things, some of which are laid out anew before and after.

    Args:
        ctx: the rank's context.
        x: the first input, which is given by rows.
        other: another one, which is given by columns.
        distributed: whether the first one is given as a DTensor.
    """
    mesh = ctx.mesh((ctx.world_size,))
    styles: list[ParallelStyle] = [
        PrepareModuleInput(
            input_layouts=(Shard(0), None, Shard(1)), desired_input_layouts=(Replicate(), None, Replicate())
        ),
        PrepareModuleOutput(
            output_layouts=(Replicate(), None, Replicate()),
            desired_output_layouts=cast("Any", (Shard(1), None, Shard(0))),
        ),
    ]
    module = _Pair()
    for style in styles:
        parallelize_module(module, mesh, style)
    rows, columns = _part(ctx, x, Shard(0)), _part(ctx, other, Shard(1))
    first = DTensor.from_local(rows, mesh, [Shard(0)], run_check=False) if distributed else rows
    added, factor, multiplied = module(first, 3, columns)
    return {"sum": local_tensor(added), "product": local_tensor(multiplied)}, factor


def convolved(
    ctx: Context, *, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, grad: torch.Tensor
) -> Tensors:
    """The whole output of a convolution of images that ranks share, and the whole gradients.

    Args:
        ctx: the rank's context.
        x: all images. (torch 2.13 gets it wrong if each rank has some columns of all of them.)
        weight: of all filters, which take every second place of images with a margin of one.
        bias: of all filters.
        grad: of the whole output.
    """
    mesh = ctx.mesh((ctx.world_size,))
    whole = {"images": x, "filters": weight} | ({} if bias is None else {"shift": bias})
    leaves = {
        name: distribute_tensor(
            value.to(ctx.device), mesh, [Shard(0) if name == "images" else Replicate()], src_data_rank=None
        ).requires_grad_()
        for name, value in whole.items()
    }
    with torch.backends.cudnn.flags(enabled=False):  # which may round
        output = functional.conv2d(leaves["images"], leaves["filters"], leaves.get("shift"), stride=2, padding=1)
        output.backward(distribute_tensor(grad.to(ctx.device), mesh, [Shard(0)], src_data_rank=None))
    gradients = {f"{name} gradient": _whole(gradient_of(leaf)) for name, leaf in leaves.items()}
    return {"output": _whole(output), **gradients}


def second_derivative(ctx: Context, *, x: torch.Tensor) -> Tensors:
    """The gradient of the sum of cubes of a tensor by rows, taken by columns, and the gradient of its squares' sum."""
    mesh = ctx.mesh((ctx.world_size,))
    rows = distribute_tensor(x.to(ctx.device), mesh, [Shard(0)], src_data_rank=None).requires_grad_()
    assert isinstance(rows, DTensor)
    columns = rows.redistribute(placements=[Shard(1)])
    (first,) = torch.autograd.grad((columns**3).sum(), rows, create_graph=True)
    (first**2).sum().backward()
    return {"first": _whole(first), "second": _whole(gradient_of(rows))}
