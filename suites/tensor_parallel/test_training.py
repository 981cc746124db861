"""A second step of training gives what the first gave: nothing of the first one's gradients is left in them."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_same
from suites.shared.sharding import per_rank
from suites.shared.step import second
from suites.tensor_parallel.programs import linear_layers, mesh
from suites.tensor_parallel.reference import linear, parameters, whole_layer, x_and_grad
from suites.tensor_parallel.test_correctness import COLUMN
from suites.tensor_parallel.test_mesh import check_two_dimensional, placements

pytestmark = pytest.mark.ranks(2, 4)


def test_of_a_linear_layer(ranks: Ranks) -> None:
    layer = parameters(("", 8, 5), degree=ranks.world_size, bias=True, seed=1)
    tensors = x_and_grad((3,), 5, 8, 1)
    program = linear_layers.column_parallel_linear
    got = ranks.run(second, program, parameters=layer, gather_output=False, **tensors)
    whole = whole_layer(linear, layer, **tensors)
    assert_same(got, per_rank(whole, ranks.world_size, {"output": -1, **COLUMN}))


@pytest.mark.ranks(4)
def test_of_a_layer_on_a_mesh(ranks: Ranks) -> None:
    x = placements("batch, features")
    check_two_dimensional(ranks, mesh.two_dimensional_linear, placements("rows, columns"), x, returned=second)
