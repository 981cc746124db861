"""A layer split on a mesh of two axes computes what the whole layer does: output and all gradients, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch.distributed.tensor import Placement, Replicate, Shard

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_same
from suites.shared.inputs import Given, integers, rank_inputs
from suites.shared.sharding import shard
from suites.shared.step import each_step, once
from suites.tensor_parallel.programs import mesh as programs
from suites.tensor_parallel.reference import DTYPE, all_wide, linear, parameters, whole_layer, x_and_grad


def held(tensor: torch.Tensor, placements: Sequence[Placement], mesh_shape: tuple[int, int], rank: int) -> torch.Tensor:
    """A rank's shard on a mesh: the first axis cuts the tensor, the second one what is left of it."""
    for placement, degree, coordinate in zip(placements, mesh_shape, divmod(rank, mesh_shape[1]), strict=True):
        if isinstance(placement, Shard):
            tensor = shard(tensor, degree, placement.dim)[coordinate]
    return tensor


def check_two_dimensional(
    ranks: Ranks, weight_placements: Sequence[Placement], x_placements: Sequence[Placement]
) -> None:
    mesh_shape = (2, ranks.world_size // 2)
    width = 5  # odd: no shard is as large as the others
    layer = parameters(("", width, width), degree=4, bias=False, seed=1)
    given = all_wide(layer, 1, **x_and_grad((7,), width, width, 1))
    results = ranks.run(
        each_step,
        programs.two_dimensional_linear,
        len(given),
        given=given,
        mesh_shape=mesh_shape,
        x_placements=x_placements,
        weight_placements=weight_placements,
    )
    kept = {
        "output": (Replicate(), Replicate()),
        "input gradient": x_placements,
        "weight gradient": weight_placements,
    }
    for now, got in zip(given, zip(*results, strict=True), strict=True):
        whole = whole_layer(linear, now)
        expected = [
            {name: held(tensor, kept[name], mesh_shape, rank) for name, tensor in whole.items()}
            for rank in range(ranks.world_size)
        ]
        assert_same(got, expected)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("weight", "x"),
    [
        ("rows, columns", "batch, features"),  # the second axis shares what it adds up, as tensor parallelism does
        ("rows, columns", "batch, whole"),
        ("columns, rows", "batch, whole"),
        ("rows, rows", "batch, whole"),  # fully sharded within tensor parallelism
        ("rows, whole", "batch, batch"),  # fully sharded on one axis, copies on the other: HSDP
        ("whole, columns", "whole, whole"),
    ],
)
def test_two_dimensional_sharding(ranks: Ranks, weight: str, x: str) -> None:
    check_two_dimensional(ranks, placements(weight), placements(x))


def placements(axes: str) -> tuple[Placement, ...]:
    names: dict[str, Placement] = {
        "rows": Shard(0),
        "columns": Shard(1),
        "batch": Shard(0),
        "features": Shard(1),
        "whole": Replicate(),
    }
    return tuple(names[axis] for axis in axes.split(", "))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("rows", [8, 3], ids=["rows that the ranks divide", "other rows"])
@pytest.mark.parametrize("kinds", [("avg", "sum"), ("sum", "avg"), ("avg", "avg")], ids=" and ".join)
def test_sums_and_means_along_two_axes(ranks: Ranks, kinds: tuple[str, str], rows: int) -> None:
    xs = rank_inputs(4, shape=(rows, 2), dtype=DTYPE, seed=1)
    whole = torch.stack(xs).sum(0) / 2 ** kinds.count("avg")
    layout = (Shard(0), Shard(0))
    expected = [{"whole": whole, "rows": held(whole, layout, (2, 2), rank)} for rank in range(4)]
    if rows % 4 == 0:
        expected = [of_rank | {"whole of rows": whole} for of_rank in expected]
    assert_same(ranks.run(programs.put_together, xs=xs, kinds=kinds), expected)


@pytest.mark.ranks(4)
def test_meshes_of_one_shape_whose_ranks_have_another_order(ranks: Ranks) -> None:
    x = integers((4, 6), DTYPE, seed=1)
    orders = ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    results = ranks.run(programs.on_meshes, x=x, orders=orders)
    for order, got in zip(orders, zip(*results, strict=True), strict=True):
        places = {rank: (row, column) for row, of_row in enumerate(order) for column, rank in enumerate(of_row)}
        parts = [(2 * x).chunk(2)[places[rank][0]].chunk(2, 1)[places[rank][1]] for rank in range(4)]
        assert_same(got, [{"part": part, "whole": 2 * x} for part in parts])


@pytest.mark.ranks(4)
def test_sums_and_words_on_either_axis(ranks: Ranks) -> None:
    x, weight = 4 * integers((5, 3), DTYPE, seed=1), integers((5, 4), DTYPE, seed=2)
    tokens = integers((4, 3), torch.int64, seed=3, low=0, high=4)
    sums = [f"{kind} on the {axis} axis" for kind in ("sum", "mean") for axis in ("first", "second")]
    words = [f"words on the {axis}" for axis in ("first axis", "second axis", "second axis, which shares features")]
    expected = dict.fromkeys([*sums, "maximum on the second axis"], x) | dict.fromkeys(words, weight[tokens])
    assert_same(ranks.run(programs.along_either_axis, x=x, weight=weight, tokens=tokens), [expected] * 4)


@pytest.mark.ranks(3)
def test_a_mesh_that_begins_with_another_rank_than_the_first(ranks: Ranks) -> None:
    """The rank that is not on it has nothing, whatever the others do."""
    xs = rank_inputs(3, shape=(5, 3), dtype=DTYPE, seed=1)
    grad = integers((5, 3), DTYPE, seed=2)
    outside, *inside = ranks.run(programs.on_some_ranks, xs=xs, grad=grad)
    for name, value in outside.items():
        assert not value.numel(), f"rank 0 has {list(value.shape)} of the {name}"
    x = xs[1]
    expected = [
        {
            "rows": shard(x, 2, 0)[place],
            "columns": shard(2 * x, 2, 1)[place],
            "total": x.sum(0),
            "whole": 2 * x,
            "gradient": shard(2 * grad, 2, 0)[place],
        }
        for place in range(2)
    ]
    assert_same(inside, expected)


@pytest.mark.ranks(2)
def test_a_mesh_of_more_ranks_than_the_world_is_refused(ranks: Ranks) -> None:
    layer, tensors = parameters(("", 4, 4), degree=4, bias=False, seed=1), x_and_grad((4,), 4, 4, 1)
    with pytest.raises(ValueError, match=r"^a mesh of 2 x 2 ranks has 4, the world 2"):
        ranks.run(
            once,
            programs.two_dimensional_linear,
            given=[Given(layer, **tensors)],
            mesh_shape=(2, 2),
            x_placements=placements("batch, whole"),
            weight_placements=placements("rows, columns"),
        )
