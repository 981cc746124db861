"""Every exchange that is raced trains as all experts on one device do, and the routing is what its name says."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch

from pytest_gpuperf import Context, Infeasible, Ranks
from suites.expert_parallel.programs import racing
from suites.expert_parallel.reference import kept_assignments, one_device
from suites.shared.comparison import assert_same
from suites.shared.step import Tensors

SIZES = racing.Sizes(tokens=16, width=8, hidden=4, experts=8, k=2, headroom=1.25, dtype=torch.float64)
STEPS = 2
ROUNDED = 1e-5  # of float32 numbers; the arithmetic is float64

routings = pytest.mark.parametrize("routing", get_args(racing.Routing))


def steps(ctx: Context, *, routing: racing.Routing, padded: bool, chunks: int) -> list[tuple[Tensors, Tensors]]:
    """What each step returns, and what one device says."""
    # Experts that 3 ranks divide as well.
    sizes = dataclasses.replace(SIZES, experts=12, tokens=18)
    step = racing.train(ctx, sizes=sizes, routing=routing, padded=padded, chunks=chunks, seed=1)
    return [(step(), one_device(ctx, sizes, routing, 1, number)) for number in range(1, STEPS + 1)]


@pytest.mark.ranks(2, 3, 4)
@routings
@pytest.mark.parametrize(("padded", "chunks"), [(True, 1), (True, 2), (False, 1), (False, 2)])
def test_tokens_are_trained_as_on_one_device(ranks: Ranks, routing: racing.Routing, padded: bool, chunks: int) -> None:
    results = ranks.run(steps, routing=routing, padded=padded, chunks=chunks)
    for number in range(STEPS):
        got, expected = zip(*(of_rank[number] for of_rank in results), strict=True)
        assert_same(got, expected, ROUNDED)


@routings
def test_balanced_routing_drops_nothing_and_skewed_routing_drops_some(routing: racing.Routing) -> None:
    """Of 512 tokens with 2 choices of 8 experts: 128 assignments each, or the first expert has most by far."""
    sizes = dataclasses.replace(SIZES, tokens=512)
    chosen = racing.chosen_experts(sizes, routing, rank=0, number=0)
    wanted = torch.bincount(chosen.reshape(-1), minlength=sizes.experts).tolist()
    assert (wanted == [128] * 8) == (routing == "balanced")
    assert (wanted[0] > 4 * wanted[-1]) == (routing == "skewed")
    kept = kept_assignments(chosen, sizes.experts, sizes.capacity)
    assert all(len(set(row)) == sizes.k for row in chosen.tolist())  # no expert twice
    counts = torch.bincount(chosen[kept], minlength=sizes.experts)
    assert int(counts.max()) <= sizes.capacity == 160
    assert bool(kept.all()) == (routing == "balanced")
    rows = racing.rows_between(sizes, routing, 2)
    assert rows[0].tolist() == counts.view(2, -1).sum(1).tolist()
    assert (rows[0, 0] == rows[0, 1]) == (routing == "balanced")


@pytest.mark.ranks(3)
def test_experts_that_the_ranks_do_not_divide_cannot_run(ranks: Ranks) -> None:
    with pytest.raises(Infeasible, match="8 experts make no 3 equal parts"):
        ranks.run(racing.train, sizes=SIZES, routing="balanced", padded=True, chunks=1, seed=1)
