"""The optimizer's shards end with the same weights by both ways, however many steps are taken."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from pytest_gpuperf import Context, Ranks
from suites.shared.noted_calls import assert_in_turn
from suites.symmetric_memory.programs import shards_in_turn


def taken(ctx: Context, way: str, numel: int, steps: int) -> None:
    """Steps one after the other, each compared on the ranks."""
    step = getattr(shards_in_turn, way)(ctx, numel=numel)
    for number in range(1, steps + 1):
        weights = step()
        ctx.barrier()
        shards_in_turn.verify(ctx, weights, number)
        ctx.barrier()


@pytest.mark.ranks(2, 3, 4, nodes=1)
@pytest.mark.parametrize("way", ["by_nccl", "by_memory"])
def test_each_step(ranks: Ranks, way: str) -> None:
    ranks.run(partial(taken, way=way, numel=ranks.world_size, steps=1))
    ranks.run(partial(taken, way=way, numel=24_000, steps=5))


def test_ranks_read_from_and_write_to_one_rank_after_another() -> None:
    assert_in_turn(partial(shards_in_turn.by_memory, numel=12), ranks=3)


@pytest.mark.ranks(2, nodes=1)
@pytest.mark.parametrize("way", ["by_nccl", "by_memory"])
def test_weights_that_do_not_divide_are_refused(ranks: Ranks, way: str) -> None:
    program: Any = getattr(shards_in_turn, way)
    with pytest.raises(ValueError, match=re.escape("5 weights cannot be split evenly over 2 ranks")):
        ranks.run(program, numel=5)
