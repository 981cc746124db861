"""An optimizer split over ranks does what one does alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_each
from suites.shared.inputs import integers
from suites.shared.step import once
from suites.shared.strategies import seeds
from suites.symmetric_memory.programs.optimizer_shards import Steps, optimizer_shards

pytestmark = pytest.mark.ranks(2)

LR, MOMENTUM = 2**-3, 2**-1


def assert_optimized(
    ranks: Ranks, *, numel: int, steps: int, seed: int, program: Callable[..., Steps], **kwargs: bool
) -> None:
    """The same weights as one optimizer's that sees the mean of all gradients.

    Exactly: weights and gradients are whole numbers, the gradients multiples of R, learning rate and momentum powers
    of 2. After 3 steps no bit is worth less than 2**-3 * 2**-2, and none more than 2**9.
    """
    degree = ranks.world_size
    weights = integers((numel,), torch.float64, seed=seed)
    gradients = [
        [degree * integers((numel,), torch.float64, seed=seed * 64 + 8 * step + rank + 1) for rank in range(degree)]
        for step in range(steps)
    ]
    whole, momenta = weights.clone(), torch.zeros_like(weights)
    for of_ranks in gradients:  # torch.optim.SGD's definition of momentum, without dampening
        momenta = MOMENTUM * momenta + sum(of_ranks) / degree
        whole = whole - LR * momenta
    results = ranks.run(once, program, weights=weights, gradients=gradients, lr=LR, momentum=MOMENTUM, **kwargs)
    assert_each([result["weights"] for result in results], [whole] * degree, "weight")
    assert torch.equal(torch.cat([result["momenta"] for result in results]), momenta)
    # What the split is for: no rank keeps more than its R-th of the momenta, rounded up.
    assert max(len(result["momenta"]) for result in results) == -(-numel // degree)


@given(numel=st.integers(1, 20), steps=st.integers(1, 3), seed=seeds)
def test_optimizer_shards(ranks: Ranks, numel: int, steps: int, seed: int) -> None:
    assert_optimized(ranks, numel=numel, steps=steps, seed=seed, program=optimizer_shards)


@pytest.mark.ranks(4, 8, device="cuda")
def test_optimizer_shards_on_many_gpus(ranks: Ranks) -> None:
    assert_optimized(ranks, numel=1001, steps=3, seed=1, program=optimizer_shards)


@pytest.mark.deliberate_break
def test_shards_that_see_only_their_own_gradient_are_found(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"^rank 0, weight: "):
        assert_optimized(ranks, numel=8, steps=1, seed=1, program=optimizer_shards, only_own_gradients=True)
