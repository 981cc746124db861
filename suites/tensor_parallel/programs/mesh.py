"""A linear layer whose weight and input are split over a mesh of two axes, and what such meshes split and add up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional

from pytest_gpuperf import Context
from suites.shared.inputs import Given
from suites.shared.sharding import local_gradient, local_tensor
from suites.shared.step import Step, Tensors


def two_dimensional_linear(
    ctx: Context,
    *,
    given: Sequence[Given],
    mesh_shape: tuple[int, int],
    x_placements: Sequence[Placement],
    weight_placements: Sequence[Placement],
) -> Step[Tensors]:
    """A product of DTensors on a mesh of two axes; the step returns the whole output and each rank's gradients.

    Args:
        ctx: the rank's context.
        given: to each step in turn: the whole input, the gradient of the whole output, and the whole ``weight``.
        mesh_shape: ranks along each axis.
        x_placements: what each axis does to the input.
        weight_placements: what each axis does to the weight.
    """
    if math.prod(mesh_shape) != ctx.world_size:
        raise ValueError(
            f"a mesh of {mesh_shape[0]} x {mesh_shape[1]} ranks has {math.prod(mesh_shape)}, the world {ctx.world_size}"
        )
    mesh = ctx.mesh(mesh_shape)

    def split(tensor: torch.Tensor, placements: Sequence[Placement]) -> DTensor:
        return distribute_tensor(tensor.to(ctx.device), mesh, placements, src_data_rank=None)

    weight = split(given[0].parameters["weight"], weight_placements).requires_grad_()
    steps = itertools.cycle(given)

    def step() -> Tensors:
        now = next(steps)
        with torch.no_grad():
            weight.copy_(split(now.parameters["weight"], weight_placements))
        weight.grad = None
        x = split(now.x, x_placements).requires_grad_()
        product = functional.linear(x, weight)
        assert isinstance(product, DTensor)
        output = product.full_tensor()
        output.backward(now.grad.to(ctx.device))
        return {
            "output": local_tensor(output),
            "input gradient": local_gradient(x),
            "weight gradient": local_gradient(weight),
        }

    return step


def put_together(ctx: Context, *, xs: Sequence[torch.Tensor], kinds: tuple[str, str]) -> Tensors:
    """Put the ranks' tensors together, along each axis as its kind says, in one collective over both axes.

    So is the rank's part of it by rows, which the first axis cuts and then the second one.

    Args:
        ctx: the rank's context.
        xs: of all ranks.
        kinds: ``sum`` or ``avg``, for each axis.
    """
    mesh = ctx.mesh((2, ctx.world_size // 2), ("first", "second"))
    mesh._flatten("both")
    placements = [Partial(kind) for kind in kinds]
    own = DTensor.from_local(xs[ctx.rank].to(ctx.device), mesh, placements, run_check=False)
    rows = own.redistribute(placements=[Shard(0), Shard(0)])
    told = {"whole": own.full_tensor(), "rows": rows.to_local()}
    if len(own) % ctx.world_size:  # torch 2.13 loses rows: https://github.com/pytorch/pytorch/pull/194457
        return told
    return told | {"whole of rows": rows.full_tensor()}


def on_meshes(ctx: Context, *, x: torch.Tensor, orders: Sequence[Sequence[Sequence[int]]]) -> list[Tensors]:
    """The rank's part of twice a tensor that is split by rows and columns, and the whole of it, on each of some meshes.

    Args:
        ctx: the rank's context.
        x: the tensor.
        orders: the ranks of each mesh, in rows.
    """
    told = []
    for order in orders:
        mesh = DeviceMesh(ctx.device.type, torch.tensor(order))
        part = distribute_tensor(x.to(ctx.device), mesh, [Shard(0), Shard(1)], src_data_rank=None)
        doubled = 2 * part
        assert isinstance(doubled, DTensor)
        told.append({"part": doubled.to_local(), "whole": doubled.full_tensor()})
    return told


def on_some_ranks(ctx: Context, *, xs: Sequence[torch.Tensor], grad: torch.Tensor) -> Tensors:
    """What the rank has of a tensor that all ranks but the first share by rows, and of what they do with it.

    Args:
        ctx: the rank's context.
        xs: of all ranks, of which those on the mesh take that of its first rank.
        grad: the gradient of the whole of twice the tensor by columns.
    """
    mesh = DeviceMesh(ctx.device.type, torch.arange(1, ctx.world_size))
    rows = distribute_tensor(xs[ctx.rank].to(ctx.device), mesh, [Shard(0)]).requires_grad_()
    assert isinstance(rows, DTensor)
    columns = 2 * rows.redistribute(placements=[Shard(1)])
    assert isinstance(columns, DTensor)
    total = rows.detach().sum(0)
    assert isinstance(total, DTensor)
    told = {"rows": local_tensor(rows), "columns": local_tensor(columns), "total": local_tensor(total.full_tensor())}
    whole = columns.full_tensor()
    if ctx.rank:
        whole.backward(grad.to(ctx.device))
        told |= {"whole": whole.detach(), "gradient": local_gradient(rows)}
    return told


def along_either_axis(ctx: Context, *, x: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor) -> Tensors:
    """What is made or looked up on a mesh of two by two, of which one axis has summands and the other one parts.

    Args:
        ctx: the rank's context.
        x: a matrix, which becomes parts of a sum or a mean along one axis and is cut by the other one.
        weight: of an embedding, whose words one axis shares.
        tokens: which the other axis shares by rows.
    """
    mesh = ctx.mesh((2, ctx.world_size // 2))

    def laid_out(tensor: torch.Tensor, *placements: Placement) -> torch.Tensor:
        return distribute_tensor(tensor.to(ctx.device), mesh, placements, src_data_rank=None)

    def looked_up(words: Sequence[Placement], cut: Sequence[Placement], target: Sequence[Placement]) -> torch.Tensor:
        found = functional.embedding(laid_out(tokens, *cut), laid_out(weight, *words))
        assert isinstance(found, DTensor)
        # All at once, torch 2.13 would mask tokens that other ranks have.
        together: torch.Tensor = found.redistribute(placements=target)
        return together

    whole, rows, features = Replicate(), Shard(0), Shard(2)
    told = {
        "sum on the first axis": laid_out(x, Partial(), rows),
        "sum on the second axis": laid_out(x, rows, Partial()),
        "mean on the first axis": laid_out(x, Partial("avg"), Shard(1)),
        "mean on the second axis": laid_out(x, Shard(1), Partial("avg")),
        "maximum on the second axis": laid_out(x, whole, Partial("max")),
        "words on the first axis": looked_up((rows, whole), (whole, rows), (whole, rows)),
        "words on the second axis": looked_up((whole, rows), (rows, whole), (rows, whole)),
        "words on the second axis, which shares features": looked_up((whole, rows), (rows, whole), (rows, features)),
    }
    return {name: local_tensor(tensor.full_tensor()) for name, tensor in told.items() if isinstance(tensor, DTensor)}
