"""Products of what ranks gather, and products that they add, where torch has no symmetric memory to fuse them."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_each, assert_same
from suites.shared.inputs import integers, rank_inputs
from suites.symmetric_memory.programs.fallbacks import gathered, scattered

pytestmark = pytest.mark.ranks(3, device="cpu")


@pytest.mark.parametrize("return_whole", [True, False], ids=["whole", "products alone"])
@pytest.mark.parametrize("dim", range(3))
def test_products_of_what_is_gathered(ranks: Ranks, dim: int, return_whole: bool) -> None:
    parts = rank_inputs(3, shape=(2, 4, 5), dtype=torch.float64, seed=1)
    whole = torch.cat(parts, dim)
    weights = [integers((whole.shape[-1], columns), torch.float64, seed=columns) for columns in (2, 3)]
    expected = {f"product {number}": whole @ weight for number, weight in enumerate(weights)}
    if return_whole:
        expected["whole"] = whole
    got = ranks.run(gathered, parts=parts, weights=weights, dim=dim, return_whole=return_whole)
    assert_same(got, [expected] * 3, ordered=False)


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("dim", range(3))
def test_products_that_are_added(ranks: Ranks, dim: int, op: str) -> None:
    xs = [3 * x for x in rank_inputs(3, shape=(3, 6, 5), dtype=torch.float64, seed=1)]
    weight = integers((5, 9), torch.float64, seed=2)
    total = torch.stack([x @ weight for x in xs]).sum(0) / (3 if op == "avg" else 1)
    got = ranks.run(scattered, xs=xs, weight=weight, dim=dim, op=op)
    assert_each(got, list(total.chunk(3, dim)), "part")
