"""DTensors that are made without a plan hold what they should, and functions of local parts what whole ones do."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers, rank_inputs
from suites.shared.step import gradient_of
from suites.tensor_parallel.programs.placed import Scaled, mapped, placements, replicated, split_as_on
from suites.tensor_parallel.reference import DTYPE

pytestmark = pytest.mark.ranks(2)


def test_a_module_without_a_function_that_cuts_it(ranks: Ranks) -> None:
    """All ranks hold rank 0's numbers. What did not train does not."""
    weights = rank_inputs(2, shape=(3, 4), dtype=DTYPE, seed=1)
    x = integers((5, 3), DTYPE, seed=2)
    got = ranks.run(replicated, weights=weights, x=x)
    module = Scaled(weights[0].clone(), weights[0][0].clone(), weights[0][-1].clone())
    output = module(x)
    output.square().sum().backward()
    held = {"weight": weights[0], "shift": weights[0][0], "scale": weights[0][-1]}
    assert_same([of_rank.pop("held") for of_rank in got], [held] * 2, ordered=False)
    for rank, trained in enumerate(of_rank.pop("trained") for of_rank in got):
        assert trained == ["weight"], f"rank {rank}: {trained} train, expected the weight alone"
    whole = {"gradient": gradient_of(module.weight), "output": output.detach()}
    assert_same(got, [whole] * 2, ordered=False)


def test_each_way_to_place_a_tensor(ranks: Ranks) -> None:
    xs = rank_inputs(2, shape=(4, 6), dtype=DTYPE, seed=3)
    rows, columns = torch.cat(xs), torch.cat(xs, 1)
    expected = {
        "replicas, as none is said": xs[0],
        "as on rank 0, as no placement is said": xs[0],
        "rows": rows,
        "columns": columns,
        "columns made rows": columns,
        "part of a sum": xs[0],
        "part of a mean": xs[0],
        "twice placed": rows,
        "times what all have": rows * xs[0][0],
        "in another precision": rows.float(),
    }
    assert_same(ranks.run(placements, xs=xs), [expected] * 2, ordered=False)


def test_a_function_of_local_parts(ranks: Ranks) -> None:
    x, weight = integers((4, 6), DTYPE, seed=4), integers((6, 3), DTYPE, seed=5)
    got = ranks.run(mapped, x=x, weight=weight, factor=3)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight)]
    output = leaves[0] @ leaves[1] * 3
    output.square().sum().backward()
    gradients = [gradient_of(leaf) for leaf in leaves]
    whole = {"output": output.detach(), "number": torch.tensor(3), "x": gradients[0], "weight": gradients[1]}
    assert_same(got, [whole] * 2, ordered=False)


@pytest.mark.parametrize("source", [1, None], ids=["as on rank 1", "as on each rank"])
def test_whose_numbers_a_plan_splits(ranks: Ranks, source: int | None) -> None:
    weights = rank_inputs(2, shape=(4, 4), dtype=DTYPE, seed=6)
    got = ranks.run(split_as_on, weights=weights, source=source)
    expected = []
    for rank in range(2):
        weight = weights[rank if source is None else source]
        cut = {"columns.weight": weight.chunk(2)[rank], "columns.bias": weight[0].chunk(2)[rank]}
        cut |= {"rows.weight": weight.chunk(2, 1)[rank], "rows.bias": weight[0]}
        expected.append(cut | {f"inner.{name}": value for name, value in cut.items()})
    assert_same(got, expected, ordered=False)
