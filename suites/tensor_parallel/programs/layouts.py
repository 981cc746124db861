"""DTensors that go from each layout to each other one, forward and backward, and tensors that are made in a layout."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import tensor as dtensors
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from pytest_gpuperf import Context
from suites.shared.sharding import local_tensor
from suites.shared.step import Tensors, gradient_of

Layout = tuple[Placement, ...]
"""What each axis of a mesh does to a tensor."""

SUM = Partial("sum")
KINDS: tuple[Placement, ...] = (Replicate(), Shard(0), Shard(-1), SUM)


def layouts(axes: int) -> list[Layout]:
    """All layouts on a mesh of so many axes."""
    return list(itertools.product(KINDS, repeat=axes))


def named(source: Layout, target: Layout) -> str:
    """The way from one layout to another one."""
    return " to ".join("".join(str(placement) for placement in layout) for layout in (source, target))


def possible(source: Layout, target: Layout) -> bool:
    """Whether torch takes this way: what is no sum becomes none."""
    return all(before == after or not after.is_partial() for before, after in zip(source, target, strict=True))


def held(layout: Layout) -> Layout:
    """The layout in which a gradient comes back: a sum's is whole."""
    return tuple(Replicate() if placement.is_partial() else placement for placement in layout)


def laid_out(ctx: Context, mesh: DeviceMesh, parts: Sequence[torch.Tensor], layout: Layout) -> DTensor:
    """The sum of the parts as a DTensor; where an axis leaves sums, each of its ranks has some of the parts.

    Args:
        ctx: the rank's context.
        mesh: of all ranks.
        parts: one for each rank.
        layout: on the mesh.
    """
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    summed = [axis for axis, placement in enumerate(layout) if placement.is_partial()]
    ranks = mesh.mesh.cpu()
    for axis in summed:
        ranks = ranks.narrow(axis, coordinate[axis], 1)
    own = torch.stack([parts[rank] for rank in ranks.flatten().tolist()]).sum(0).to(ctx.device)
    cut = distribute_tensor(own, mesh, held(layout), src_data_rank=None).to_local()
    whole = own.shape
    return DTensor.from_local(cut, mesh, layout, run_check=False, shape=whole, stride=own.stride())


def each_way(
    ctx: Context, *, shape: tuple[int, ...], parts: list[torch.Tensor], grad: torch.Tensor, of: int
) -> dict[str, Tensors]:
    """What comes of each way, by its name.

    Args:
        ctx: the rank's context.
        shape: of the mesh.
        parts: of the whole tensor, whose sum it is.
        grad: the gradient of the tensor when it has gone the way.
        of: it goes one of so many ways.
    """
    mesh = ctx.mesh(shape)
    told = {}
    ways = [way for way in itertools.product(layouts(len(shape)), repeat=2) if possible(*way)]
    for source, target in ways[::of]:
        leaf = laid_out(ctx, mesh, parts, source).detach().requires_grad_()
        assert isinstance(leaf, DTensor)
        gone = leaf.redistribute(mesh, target)
        assert gone.placements == tuple(Shard(1) if place == Shard(-1) else place for place in target)
        given = distribute_tensor(grad.to(ctx.device), mesh, held(target), src_data_rank=None)
        gone.backward(given)
        back = gradient_of(leaf)
        assert isinstance(back, DTensor)
        summed = any(placement.is_partial() for placement in target)
        found = {"gradient": back.to_local(), "tensor": gone.full_tensor() if summed else gone.to_local()}
        told[named(source, target)] = {name: local_tensor(value) for name, value in found.items()}
    return told


def from_apart(
    ctx: Context,
    *,
    shape: tuple[int, ...],
    x: torch.Tensor,
    grad: torch.Tensor,
    source: Layout,
    targets: Sequence[Layout],
) -> dict[str, Tensors]:
    """What comes of a matrix that is made a vector and then goes to other layouts; a rank's numbers lie apart in it.

    Args:
        ctx: the rank's context.
        shape: of the mesh.
        x: the whole matrix.
        grad: the gradient of the vector when it has gone the way.
        source: of the matrix.
        targets: of the vector, each of which it goes to.
    """
    mesh = ctx.mesh(shape)
    told = {}
    for target in targets:
        leaf = distribute_tensor(x.to(ctx.device), mesh, source, src_data_rank=None).requires_grad_()
        flat = leaf.flatten()
        assert isinstance(flat, DTensor)
        gone = flat.redistribute(mesh, target)
        gone.backward(distribute_tensor(grad.to(ctx.device), mesh, target, src_data_rank=None))
        told[named(source, target)] = {
            "gradient": local_tensor(gradient_of(leaf)),
            "vector": local_tensor(gone),
            "whole vector": local_tensor(flat.full_tensor()),
        }
    return told


def put_together(ctx: Context, *, parts: list[torch.Tensor]) -> dict[str, Tensors]:
    """Parts of a sum, a mean, an extremum or a product when they are put together, whole and by rows and columns."""
    mesh = ctx.mesh((ctx.world_size,))
    told = {}
    for kind in ("sum", "avg", "min", "max", "product"):
        part = DTensor.from_local(parts[ctx.rank].to(ctx.device), mesh, [Partial(kind)], run_check=False)
        ways: dict[str, list[Placement]] = {"whole": [Replicate()], "rows": [Shard(0)], "columns": [Shard(1)]}
        told[kind] = {name: local_tensor(part.redistribute(mesh, way)) for name, way in ways.items()}
    return told


def made(ctx: Context, *, shape: tuple[int, ...], size: tuple[int, ...], layout: Layout) -> dict[str, Tensors]:
    """What the rank holds of tensors that are made in a layout, of one like another one, and all of them.

    Args:
        ctx: the rank's context.
        shape: of the mesh.
        size: of the tensors.
        layout: on the mesh.
    """
    mesh = ctx.mesh(shape)
    placed: dict[str, Any] = {"device_mesh": mesh, "placements": layout}
    made: dict[str, torch.Tensor] = {
        "zeros": dtensors.zeros(*size, dtype=torch.float64, requires_grad=True, **placed),
        "ones": dtensors.ones(size, dtype=torch.float16, requires_grad=True, **placed),
        "full": dtensors.full(size, 2.5, requires_grad=True, **placed),
        "filled": dtensors.empty(size, dtype=torch.bfloat16, requires_grad=True, **placed),
    }
    trains = list(made)
    with torch.no_grad():
        made["filled"].fill_(3)
    with mesh:  # which is the mesh of what names none
        made["whole"] = dtensors.full(size, 7, dtype=torch.int64)
    made |= {
        "like": torch.full_like(made["full"], 1.5),
        "new": made["full"].new_full((4, 3), 5.0),
        "random like": torch.zeros_like(made["zeros"]).uniform_(1, 2).floor(),
    }
    told = {}
    for name, value in made.items():
        assert isinstance(value, DTensor)
        assert value.requires_grad == (name in trains)
        told[name] = {"part": local_tensor(value), "whole": local_tensor(value.full_tensor())}
    return told
