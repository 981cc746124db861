"""A DTensor is the same tensor in each layout, and so is its gradient: whole numbers, exactly, unevenly cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch.distributed.tensor import Placement, Replicate, Shard

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_close, assert_same
from suites.shared.inputs import integers, rank_inputs
from suites.shared.sharding import shard
from suites.tensor_parallel.programs.layouts import (
    Layout,
    each_way,
    from_apart,
    held,
    layouts,
    made,
    named,
    possible,
    put_together,
)
from suites.tensor_parallel.reference import DTYPE


def part_of(whole: torch.Tensor, layout: Layout, shape: tuple[int, ...], rank: int) -> torch.Tensor:
    """A rank's part: each axis of the mesh in turn cuts what is left."""
    coordinates = torch.unravel_index(torch.tensor(rank), shape)
    for placement, degree, index in zip(layout, shape, coordinates, strict=True):
        if isinstance(placement, Shard):
            whole = shard(whole, degree, placement.dim)[int(index)]
    return whole


@pytest.mark.ranks(3, 4)
def test_each_way(ranks: Ranks) -> None:
    """Three ranks in a row go all ways; four, two by two, every seventh one, which begins with each layout."""
    check_ways(ranks, *(((3,), 1) if ranks.world_size == 3 else ((2, 2), 7)))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("shape", [(1, 2), (2, 1)], ids=["the first", "the second"])
def test_each_way_on_a_mesh_one_of_whose_axes_has_one_rank(ranks: Ranks, shape: tuple[int, ...]) -> None:
    check_ways(ranks, shape, 7)


def check_ways(ranks: Ranks, shape: tuple[int, ...], of: int) -> None:
    """One of so many ways gives a part of the tensor, forward, and of the gradient, backward."""
    parts = rank_inputs(ranks.world_size, shape=(5, 4), dtype=DTYPE, seed=1)
    whole, grad = torch.stack(parts).sum(0), integers((5, 4), DTYPE, seed=2)
    ways = [way for way in itertools.product(layouts(len(shape)), repeat=2) if possible(*way)][::of]
    assert {source for source, _ in ways} == set(layouts(len(shape)))
    for rank, told in enumerate(ranks.run(each_way, shape=shape, parts=parts, grad=grad, of=of)):
        assert list(told) == [named(*way) for way in ways]
        for source, target in ways:
            summed = any(placement.is_partial() for placement in target)
            expected = {
                "gradient": part_of(grad, held(source), shape, rank),
                "tensor": whole if summed else part_of(whole, target, shape, rank),
            }
            for name, value in told[named(source, target)].items():
                assert_close(value, expected[name], f"rank {rank}, {named(source, target)}, {name}")


FLAT: Sequence[Placement] = (Replicate(), Shard(0))


@pytest.mark.ranks(3, 4)
def test_each_way_of_what_lies_apart(ranks: Ranks) -> None:
    """Each rank has some columns of a matrix, which is made a vector: the ranks' numbers take turns."""
    if torch.__version__ < "2.13":  # compared as a version
        pytest.skip(f"a matrix that is cut by columns is made a vector from torch 2.13 on, this is {torch.__version__}")
    shape = (3,) if ranks.world_size == 3 else (2, 2)
    x, grad = integers((4, 6), DTYPE, seed=1), integers((24,), DTYPE, seed=2)
    targets = list(itertools.product(FLAT, repeat=len(shape)))
    for source in [(*outer, Shard(1)) for outer in itertools.product(FLAT, repeat=len(shape) - 1)]:
        got = ranks.run(from_apart, shape=shape, x=x, grad=grad, source=source, targets=targets)
        for rank, told in enumerate(got):
            for target in targets:
                expected = {
                    "gradient": part_of(grad.view(4, 6), source, shape, rank),
                    "vector": part_of(x.flatten(), target, shape, rank),
                    "whole vector": x.flatten(),
                }
                for name, value in told[named(source, target)].items():
                    assert_close(value, expected[name], f"rank {rank}, {named(source, target)}, {name}")


@pytest.mark.ranks(3)
def test_what_parts_are_put_together_to(ranks: Ranks) -> None:
    parts = [3 * (2 * part + 1) for part in rank_inputs(3, shape=(5, 4), dtype=DTYPE, seed=3)]
    stacked = torch.stack(parts)
    whole = {
        "sum": stacked.sum(0),
        "avg": stacked.sum(0) / 3,
        "min": stacked.amin(0),
        "max": stacked.amax(0),
        "product": stacked.prod(0),
    }
    got = ranks.run(put_together, parts=parts)
    for kind, value in whole.items():
        expected = [
            {"whole": value, "rows": shard(value, 3, 0)[rank], "columns": shard(value, 3, 1)[rank]} for rank in range(3)
        ]
        assert_same([told[kind] for told in got], expected, ordered=False)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", [(Shard(1), Shard(0)), (Shard(0), Shard(0))], ids=str)
def test_tensors_that_are_made_in_a_layout(ranks: Ranks, layout: Layout) -> None:
    size, shape = (5, 3), (2, 2)
    whole = {
        "zeros": torch.zeros(size, dtype=DTYPE),
        "ones": torch.ones(size, dtype=torch.float16),
        "full": torch.full(size, 2.5),
        "filled": torch.full(size, 3, dtype=torch.bfloat16),
        "whole": torch.full(size, 7),
        "like": torch.full(size, 1.5),
        "new": torch.full((4, 3), 5.0),
        "random like": torch.ones(size, dtype=DTYPE),
    }
    for rank, told in enumerate(ranks.run(made, shape=shape, size=size, layout=layout)):
        assert sorted(told) == sorted(whole)
        for name, value in whole.items():
            assert_close(told[name]["whole"], value, f"rank {rank}, {name}")
            if name not in ("whole", "new"):
                assert_close(told[name]["part"], part_of(value, layout, shape, rank), f"rank {rank}, part of {name}")
