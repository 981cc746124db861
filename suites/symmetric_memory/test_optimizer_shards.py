"""An optimizer split over ranks does what one does alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_each
from suites.shared.inputs import integers
from suites.shared.step import once
from suites.shared.strategies import seeds, worlds
from suites.symmetric_memory.programs.optimizer_shards import optimizer_shards

pytestmark = pytest.mark.ranks(2, 3, nodes=1)

LR, MOMENTUM = 2**-3, 2**-1
LARGEST = 2**36  # magnitude of a gradient, before it is multiplied


def assert_optimized(ranks: Ranks, *, numel: int, steps: int, seed: int) -> None:
    """All ranks end with the weights of one optimizer that sees the mean of all gradients.

    They are exact: weights and gradients are whole numbers, the gradients multiples of R, learning rate and momentum
    powers of 2. After 3 steps no bit is worth less than 2**-3 * 2**-2, and none more than 8 * 2**38: float64 holds 53
    bits, and a smaller dtype would not.
    """
    degree = ranks.world_size
    weights = integers((numel,), torch.float64, seed=seed)
    gradients = [
        [
            degree * integers((numel,), torch.float64, seed=seed * 64 + 8 * step + rank + 1, low=-LARGEST, high=LARGEST)
            for rank in range(degree)
        ]
        for step in range(steps)
    ]
    whole, momenta = weights.clone(), torch.zeros_like(weights)
    for of_ranks in gradients:  # torch.optim.SGD's definition of momentum, without dampening
        momenta = MOMENTUM * momenta + sum(of_ranks) / degree
        whole = whole - LR * momenta
    results = ranks.run(once, optimizer_shards, weights=weights, gradients=gradients, lr=LR, momentum=MOMENTUM)
    assert_each([result["weights"] for result in results], [whole] * degree, "weight")
    assert torch.equal(torch.cat([result["momenta"] for result in results]), momenta)
    # What the split is for: no rank keeps more than its R-th of the momenta, rounded up.
    assert max(len(result["momenta"]) for result in results) == -(-numel // degree)


@given(data=st.data(), numel=st.integers(1, 20), steps=st.integers(1, 3), seed=seeds)
def test_optimizer_shards(ranks: Ranks, data: st.DataObject, numel: int, steps: int, seed: int) -> None:
    assert_optimized(data.draw(worlds(ranks)), numel=numel, steps=steps, seed=seed)


@pytest.mark.ranks(4, 8, nodes=1, device="cuda")
def test_optimizer_shards_on_many_gpus(ranks: Ranks) -> None:
    assert_optimized(ranks, numel=1001, steps=3, seed=1)
