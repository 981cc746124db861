"""Meshes that are cut from others, flattened, divided, put together and made of groups: who is on them, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, distribute_tensor

from pytest_gpuperf import Context

AXES = ("a", "b", "c")
SHAPE = (2, 2, 2)
"""Rank 4 a + 2 b + c has the coordinates (a, b, c)."""


@dataclass(frozen=True, slots=True)
class View:
    """A mesh, as a rank sees it."""

    ranks: list[object]
    """All of the mesh, nested."""
    place: list[int]
    """The rank's coordinates, and its place along each axis by name or number."""
    groups: list[list[int]]
    """The ranks of the group of each axis."""
    sums: list[int]
    """The sum of 2**rank over each group."""
    part: torch.Tensor
    """The rank's part of a tensor that all axes cut alike."""
    whole: torch.Tensor
    """Twice the tensor, put together of these parts."""


def _two_of_three(mesh: DeviceMesh) -> DeviceMesh:
    """Without the axis in the middle."""
    return mesh["a", "c"]


def _of_a_cut_one(mesh: DeviceMesh) -> DeviceMesh:
    return mesh["a", "c"]["c"]


def _flat(mesh: DeviceMesh) -> DeviceMesh:
    """The first and the last axis as one."""
    return mesh["a", "c"]._flatten("flat")


def _flat_by_its_own_name(mesh: DeviceMesh) -> DeviceMesh:
    flat = mesh["b", "c"]._flatten()
    assert flat.mesh_dim_names == ("b_c",)
    assert mesh["b", "c"]._flatten() is flat
    return flat


def _divided(mesh: DeviceMesh) -> DeviceMesh:
    """All ranks in a row, in two."""
    # A torch before 2.13 refuses the names that a mesh has.
    axis = "all" if torch.__version__ >= "2.13" else 0
    return mesh._flatten("all")._unflatten(axis, (2, 4), ("outer", "inner"))


def _put_together(mesh: DeviceMesh) -> DeviceMesh:
    """The first axis, and the others as one."""
    return DeviceMesh._concatenate([mesh["a"], mesh["b", "c"]._flatten("rest")])


def _of_a_group(mesh: DeviceMesh) -> DeviceMesh:
    return DeviceMesh.from_group(mesh.get_group("b"), mesh.device_type, mesh_dim_names=("pairs",))


def _of_groups(mesh: DeviceMesh) -> DeviceMesh:
    """The last axis first."""
    groups = [mesh.get_group("c"), mesh.get_group(0)]
    ranks = torch.arange(8).view(SHAPE)[:, mesh.get_local_rank("b")].T.contiguous()
    return DeviceMesh.from_group(groups, mesh.device_type, mesh=ranks, mesh_dim_names=("c", "a"))


def _with_backends(mesh: DeviceMesh) -> DeviceMesh:
    """Makes the mesh a second time, with groups of a named backend."""
    name = dist.get_backend(mesh.get_group("b"))
    override: Any = {"b": name, 2: name}
    return init_device_mesh(mesh.device_type, SHAPE, mesh_dim_names=AXES, backend_override=override)


def find_shared_groups(ctx: Context) -> list[bool]:
    """Return whether a mesh of all ranks uses the world's group: without a named backend, and with one."""
    found = []
    overrides: list[Any] = [{}, {0: dist.get_backend(ctx.group)}]
    for override in overrides:
        mesh = init_device_mesh(ctx.device.type, (ctx.world_size,), backend_override=override)
        found.append(mesh.get_group() is dist.group.WORLD)
    return found


MESHES: Mapping[str, Callable[[DeviceMesh], DeviceMesh]] = {
    "the whole": lambda mesh: mesh,
    "two of three": _two_of_three,
    "one axis": lambda mesh: mesh["b"],
    "one of a cut one": _of_a_cut_one,
    "flat": _flat,
    "flat by its own name": _flat_by_its_own_name,
    "divided": _divided,
    "put together": _put_together,
    "of a group": _of_a_group,
    "of groups": _of_groups,
    "with backends": _with_backends,
}
"""Each makes one of a mesh of three axes, ``AXES``."""


def seen(ctx: Context, *, names: Sequence[str], x: torch.Tensor, placement: Placement) -> dict[str, View]:
    """What the rank sees of each mesh.

    Args:
        ctx: the rank's context.
        names: those of ``MESHES``.
        x: the whole tensor.
        placement: what each axis does to it.
    """
    mesh = ctx.mesh(SHAPE, AXES)
    return {name: _view(ctx, MESHES[name](mesh), x.to(ctx.device), placement) for name in names}


def _view(ctx: Context, mesh: DeviceMesh, x: torch.Tensor, placement: Placement) -> View:
    named = mesh.mesh_dim_names
    assert named is not None
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    assert mesh.shape == tuple(mesh.size(axis) for axis in range(mesh.ndim))
    groups = [mesh.get_group(name) for name in named]
    assert groups == mesh.get_all_groups()
    sums = []
    for group in groups:
        total = torch.tensor(2**ctx.rank, device=ctx.device)
        dist.all_reduce(total, group=group)
        sums.append(int(total))
    cut = distribute_tensor(x, mesh, [placement] * mesh.ndim, src_data_rank=None)
    doubled = 2 * cut
    return View(
        mesh.mesh.tolist(),
        [*coordinate, *map(mesh.get_local_rank, named), *map(mesh.get_local_rank, range(mesh.ndim))],
        [dist.get_process_group_ranks(group) for group in groups],
        sums,
        cut.to_local().clone(),
        doubled.full_tensor(),  # type: ignore[attr-defined]
    )
