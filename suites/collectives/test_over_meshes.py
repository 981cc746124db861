"""Functional collectives give the same by each way to name their ranks; and sums have gradients."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.collectives.programs.over_meshes import by_each_name, differentiates_sums, gradients
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers, rank_inputs
from suites.shared.step import Tensors


@pytest.mark.ranks(4)
def test_by_each_name_of_the_ranks(ranks: Ranks) -> None:
    xs = rank_inputs(4, shape=(3, 2), dtype=torch.float64, seed=4)
    expected: list[Tensors] = []
    for rank in range(4):
        pair = torch.stack(xs[rank // 2 * 2 :][:2])
        total = pair.sum(0)
        names = ("group", "axis", "mesh and axis", "ranks", "name")
        expected.append(
            dict.fromkeys(names, total)
            | {
                "added": total + xs[rank],
                "view": 2 * total.flatten()[1:],
                "list": total,
                "array": total,
                "in place": 3 * total,
                "product": total @ pair.amax(0).T,
            }
        )
    assert_same(ranks.run(by_each_name, xs=xs), expected)


@pytest.mark.ranks(3)
@pytest.mark.skipif(not differentiates_sums(), reason="this torch's all_reduce has no gradient")
def test_gradients_of_sums_and_of_several_at_once(ranks: Ranks) -> None:
    """The second of two tensors is twice the input, and counts twice."""
    xs = rank_inputs(3, shape=(6,), dtype=torch.float64, seed=5)
    weights = [integers((18,), torch.float64, seed=50 + rank) for rank in range(3)]
    total = torch.stack(weights).sum(0)
    shares = torch.cat([weight[:2] for weight in weights])
    expected = [
        {
            "all_reduce": total[:6],
            "all_reduce_coalesced": 5 * total[:6],
            "all_gather": 5 * total[6 * rank : 6 * rank + 6],
            "reduce_scatter": 5 * shares,
        }
        for rank in range(3)
    ]
    assert_same(ranks.run(gradients, xs=xs, weights=weights), expected)
