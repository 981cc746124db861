"""A mesh that is made of another one has the ranks that it should, in groups that reach just these."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from pytest_gpuperf import Ranks
from suites.hybrid.programs.submeshes import MESHES, SHAPE, find_shared_groups, seen
from suites.shared.comparison import assert_close
from suites.shared.inputs import integers
from suites.shared.sharding import shard

LATER = {"divided": "_unflatten", "put together": "_concatenate"}
"""Methods that older versions of torch do not have."""


def ranks_of(name: str, rank: int) -> torch.Tensor:
    """All ranks of a mesh, as the one that has this rank is nested."""
    grid = torch.arange(math.prod(SHAPE)).view(SHAPE)
    a, b, c = rank // 4, rank // 2 % 2, rank % 2
    return {
        "the whole": grid,
        "two of three": grid[:, b],
        "one axis": grid[a, :, c],
        "one of a cut one": grid[a, b],
        "flat": grid[:, b].flatten(),
        "flat by its own name": grid[a].flatten(),
        "divided": grid.view(2, 4),
        "put together": grid.view(2, 4),
        "of a group": grid[a, :, c],
        "of groups": grid[:, b].T,
        "with backends": grid,
    }[name]


@pytest.mark.ranks(8)
def test_meshes_of_a_mesh(ranks: Ranks) -> None:
    """All axes divide the rows: where they don't, and a flat mesh of two axes exists, torch 2.13 loses some of them.

    https://github.com/pytorch/pytorch/pull/194457
    """
    names = [name for name in MESHES if hasattr(DeviceMesh, LATER.get(name, "size"))]
    x = integers((16, 3), torch.float64, seed=1)
    for rank, views in enumerate(ranks.run(seen, names=names, x=x, placement=Shard(0))):
        for name in names:
            view, those, where = views[name], ranks_of(name, rank), f"rank {rank}, {name}"
            assert view.ranks == those.tolist(), f"{where}: ranks {view.ranks}, expected {those.tolist()}"
            place = (those == rank).nonzero()[0].tolist()
            assert view.place == 3 * place, f"{where}: coordinates {view.place}, expected {place} three times"
            groups = []
            part = x
            for axis, index in enumerate(place):
                groups.append(those.movedim(axis, -1).reshape(-1, those.shape[axis]))
                groups[-1] = next(group.tolist() for group in groups[-1] if rank in group)
                part = shard(part, those.shape[axis], 0)[index]
            assert view.groups == groups, f"{where}: groups {view.groups}, expected {groups}"
            sums = [sum(2**member for member in group) for group in groups]
            assert view.sums == sums, f"{where}: sums {view.sums}, expected {sums}"
            assert_close(view.part, part, f"{where}, its part")
            assert_close(view.whole, 2 * x, f"{where}, the whole")


@pytest.mark.ranks(2)
def test_a_named_backend_has_another_group_than_the_world(ranks: Ranks) -> None:
    """Without one, a mesh of all ranks uses the world's group."""
    assert ranks.run(find_shared_groups) == [[True, False]] * 2
