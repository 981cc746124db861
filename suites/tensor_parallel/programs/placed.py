"""Modules and tensors that become DTensors by other ways than a plan, and functions of their local parts."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication, local_map
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of


class Scaled(nn.Module):
    """A product with a weight, a shift that does not train, and a buffer that scales."""

    def __init__(self, weight: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.shift = nn.Parameter(shift, requires_grad=False)
        self.register_buffer("scale", scale)
        self.scale: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output for a batch by rows."""
        return (x @ self.weight + self.shift) * self.scale


def replicated(ctx: Context, *, weights: list[torch.Tensor], x: torch.Tensor) -> dict[str, Any]:
    """A module that is distributed without a function that cuts it, which then has what rank 0 had.

    Args:
        ctx: the rank's context.
        weights: the weight on each rank before; its first row is the shift, its last row the scale.
        x: the whole batch, which ranks share by rows.
    """
    mesh = ctx.mesh((ctx.world_size,))
    weight = weights[ctx.rank].to(ctx.device)
    module = distribute_module(Scaled(weight.clone(), weight[0].clone(), weight[-1].clone()), mesh)
    output = module(distribute_tensor(x.to(ctx.device), mesh, [Shard(0)], src_data_rank=None))
    output.square().sum().backward()
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        "held": {name: value.to_local().detach() for name, value in own.items() if isinstance(value, DTensor)},
        "trained": [name for name, value in module.named_parameters() if value.requires_grad],
        "gradient": _full(gradient_of(own["weight"])),
        "output": _full(output),
    }


def placements(ctx: Context, *, xs: list[torch.Tensor]) -> Tensors:
    """What becomes of tensors by each way to make or place a DTensor, whole on each rank, by the way's name.

    Args:
        ctx: the rank's context.
        xs: a matrix of each rank.
    """
    mesh = ctx.mesh((ctx.world_size,))
    own, first = xs[ctx.rank].to(ctx.device), xs[0].to(ctx.device)
    rows = DTensor.from_local(own, mesh, [Shard(-2)], run_check=False)
    columns = DTensor.from_local(own, mesh, [Shard(-1)], run_check=False)
    part = distribute_tensor(own.clone(), mesh, [Partial()])  # which writes what rank 0 has into it
    mean = distribute_tensor(own.clone(), mesh, [Partial("avg")])
    with implicit_replication():
        product = rows * first[0]
    narrow = rows.redistribute(placements=[Replicate()], forward_dtype=torch.float32)
    return {
        "replicas, as none is said": DTensor.from_local(first, mesh, run_check=False).to_local(),
        "as on rank 0, as no placement is said": distribute_tensor(own.clone(), mesh).to_local(),
        "rows": _full(rows),
        "columns": _full(columns),
        "columns made rows": _full(columns.redistribute(placements=[Shard(-2)])),
        "part of a sum": _full(part),
        "part of a mean": _full(mean),
        "twice placed": _full(distribute_tensor(rows, mesh, [Shard(0)])),
        "times what all have": _full(product),
        "in another precision": narrow.to_local(),
    }


def mapped(ctx: Context, *, x: torch.Tensor, weight: torch.Tensor, factor: int) -> Tensors:
    """A function of local parts: a product, times a number that is no tensor, which it also gives back.

    Its batch comes by columns and is taken by rows. Each rank has a part of the weight's gradient.
    """
    mesh = ctx.mesh((ctx.world_size,))

    @local_map(  # type: ignore[untyped-decorator]
        out_placements=([Shard(0)], None),
        in_placements=([Shard(0)], [Replicate()], None),
        in_grad_placements=([Shard(0)], [Partial()], None),
        device_mesh=mesh,
        redistribute_inputs=True,
    )
    def times(mine: torch.Tensor, whole: torch.Tensor, number: int) -> tuple[torch.Tensor, int]:
        return mine @ whole * number, number

    leaves = [
        distribute_tensor(tensor.to(ctx.device), mesh, [place], src_data_rank=None).requires_grad_()
        for tensor, place in ((x, Shard(1)), (weight, Replicate()))
    ]
    output, number = times(*leaves, factor)
    output.square().sum().backward()
    gradients = [_full(gradient_of(leaf)) for leaf in leaves]
    return {"output": _full(output), "number": torch.tensor(number), "x": gradients[0], "weight": gradients[1]}


STYLES = {"columns": ColwiseParallel, "rows": RowwiseParallel}


def split_as_on(ctx: Context, *, weights: list[torch.Tensor], source: int | None) -> Tensors:
    """What the rank holds of two layers that a plan splits, and of two like them in a module ``inner``.

    Their numbers are other ones on each rank before.

    Args:
        ctx: the rank's context.
        weights: both layers' weight on each rank; its first row is both layers' bias.
        source: the rank that the others get their numbers from; None for each rank's own.
    """
    weight = weights[ctx.rank].to(ctx.device)
    block = nn.ModuleDict()
    for name in ("columns", "rows"):
        block[name] = nn.Linear(weight.shape[0], weight.shape[1], dtype=weight.dtype, device=ctx.device)
        block[name].load_state_dict({"weight": weight, "bias": weight[0]})
    layers = nn.ModuleDict({"inner": copy.deepcopy(block), **block})
    plan = {f"{path}{name}": style() for path in ("", "inner.") for name, style in STYLES.items()}
    parallelize_module(layers, ctx.mesh((ctx.world_size,)), plan, src_data_rank=source)
    values = dict(layers.named_parameters())
    return {name: value.to_local().detach() for name, value in values.items() if isinstance(value, DTensor)}


def _full(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, DTensor)
    whole: torch.Tensor = tensor.full_tensor()
    return whole.detach()
