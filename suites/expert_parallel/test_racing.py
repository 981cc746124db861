"""Every exchange that is raced trains as all experts on one device do, and the routing is what its name says."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Infeasible, Ranks
from suites.expert_parallel.programs import racing
from suites.expert_parallel.reference import kept_assignments, one_device
from suites.shared.comparison import assert_same, assert_unlike
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
    """Routes 512 tokens with 2 choices of 8 experts: each has 128 assignments, or the first expert has most by far."""
    sizes = dataclasses.replace(SIZES, tokens=512)
    rows = racing.rows_between(sizes, routing, 2)
    of_ranks = [racing.chosen_experts(sizes, routing, rank, number=0) for rank in range(2)]
    for rank, chosen in enumerate(of_ranks):
        wanted = torch.bincount(chosen.reshape(-1), minlength=sizes.experts).tolist()
        assert (wanted == [128] * 8) == (routing == "balanced")
        assert (wanted[0] > 4 * wanted[-1]) == (routing == "skewed")
        kept = kept_assignments(chosen, sizes.experts, sizes.capacity)
        assert all(len(set(row)) == sizes.k for row in chosen.tolist())  # no expert twice
        counts = torch.bincount(chosen[kept], minlength=sizes.experts)
        assert int(counts.max()) <= sizes.capacity == 160
        assert bool(kept.all()) == (routing == "balanced")
        assert rows[rank].tolist() == counts.view(2, -1).sum(1).tolist()
        assert (rows[rank, 0] == rows[rank, 1]) == (routing == "balanced")
    assert not torch.equal(*of_ranks)
    assert (rows[0].tolist() == rows[1].tolist()) == (routing == "balanced")


@pytest.mark.ranks(1)
def test_no_two_batches_and_no_two_experts_are_alike(ranks: Ranks) -> None:
    """With equal ones a token could go to any expert, and stay on any rank."""

    def drawn(ctx: Context) -> list[Tensors]:
        loads = {
            f"rank {rank}, batch {number}": racing.batch_of(ctx, SIZES, "balanced", rank, number)
            for rank in range(4)
            for number in range(racing.BATCHES)
        }
        experts = {f"expert {number}": racing.expert(ctx, SIZES, number, seed=1) for number in range(SIZES.experts)}
        return [
            {name: load.x for name, load in loads.items()}
            | {f"{name}, gradient": load.grad for name, load in loads.items()},
            {name: load.weights for name, load in loads.items()},
            *({name: one[matrix] for name, one in experts.items()} for matrix in ("first", "second")),
        ]

    for tensors in ranks.run(drawn)[0]:
        assert_unlike(tensors)


@pytest.mark.ranks(2)
def test_operations_and_bytes_are_those_of_a_step(ranks: Ranks) -> None:
    """With exact splits those of the rows that come; with padded ones those of all places."""
    sizes = dataclasses.replace(SIZES, tokens=64)

    def counted(ctx: Context) -> tuple[int, int, int]:
        found = []
        for padded in (False, True):
            step = racing.train(ctx, sizes=sizes, routing="skewed", padded=padded, chunks=1, seed=1)
            with FlopCounterMode(display=False) as counter:
                step()
            found.append(int(counter.get_total_flops()))
        x = racing.batch_of(ctx, sizes, "skewed", ctx.rank, 0).x
        return found[0], found[1], x[0].nbytes

    come = racing.rows_between(sizes, "skewed", 2).sum(0).tolist()
    places = sizes.experts * sizes.capacity
    assert ranks.run(counted) == [(sizes.flop(rows), sizes.flop(places), sizes.row) for rows in come]


@pytest.mark.ranks(3)
def test_experts_that_the_ranks_do_not_divide_cannot_run(ranks: Ranks) -> None:
    with pytest.raises(Infeasible, match="8 experts make no 3 equal parts"):
        ranks.run(racing.train, sizes=SIZES, routing="balanced", padded=True, chunks=1, seed=1)
