"""A rank trains on activations that a peer has stored, if it gets back the right ones; ranks lend in pairs."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Context, Ranks
from suites.activations.programs import techniques as programs
from suites.activations.programs.lending import Plan, lend, lending_forward, peers_plan, storing
from suites.activations.reference import arguments, assert_blocks
from suites.shared.step import Tensors, once


@pytest.mark.deliberate_break
@pytest.mark.ranks(2)
def test_a_peer_that_sends_back_in_the_order_of_storing_is_found(ranks: Ranks) -> None:
    # All of one shape, so that the wrong one fits. Backward asks for the last first.
    given = arguments(blocks=2, rows=2, width=3, hidden=3, dropout=False, seed=1)

    def program(ctx: Context) -> Tensors:
        model = programs.network(ctx, given["weights"], dropout=False)
        leaves = programs.on_device(ctx, given["x"], given["grad"])
        plan = peers_plan(ctx, model, *leaves)
        if plan is None:
            return programs.blocks_step(model, lending_forward(ctx, model), *leaves)()
        return storing(ctx, Plan(plan.tensors, sorted(plan.fetches)))()

    result, _ = ranks.run(program)
    with pytest.raises(AssertionError, match=r"^rank 0, (input|\d\.\w+) gradient: "):
        assert_blocks(result, given, "rank 0")


@pytest.mark.ranks(3)
def test_a_rank_without_a_peer_is_refused(ranks: Ranks) -> None:
    given = arguments(blocks=1, rows=1, width=1, hidden=1, dropout=False, seed=1)
    with pytest.raises(ValueError, match="the world must be of even size, got 3"):
        ranks.run(once, lend, **given)
