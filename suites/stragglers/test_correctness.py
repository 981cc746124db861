"""A late rank changes no number, the others wait for it, and its own time names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.shared.comparison import assert_unlike
from suites.shared.step import Step, once
from suites.shared.step_seconds import seconds_of_steps
from suites.stragglers.programs import late as programs

DELAY = 0.05
"""Seconds: far longer than what a busy host adds to a product of small matrices."""
ABOUT = 0.7
"""Of the delay: on a GPU it is counted in cycles, and the clocks rise and fall by a fifth."""


def seconds_of(ctx: Context, program: Callable[..., Step[torch.Tensor]], late: int) -> list[float]:
    """How long each of two steps takes this rank, all ranks beginning together."""
    return seconds_of_steps(ctx, program(ctx, late=late, delay=DELAY), 2)


def test_no_two_ranks_have_one_matrix() -> None:
    """Were they alike, a sum without the late rank's product would be that of another rank's twice."""
    assert_unlike({f"rank {rank}": programs.matrix(rank) for rank in range(4)})


@pytest.mark.ranks(2, 3, 4)
def test_nothing_but_time_changes(ranks: Ranks) -> None:
    squares = [programs.matrix(rank) @ programs.matrix(rank) for rank in range(ranks.world_size)]
    for late in (None, 0, ranks.world_size - 1):
        for rank, got in enumerate(ranks.run(once, programs.work, late=late, delay=0.001)):
            assert torch.equal(got, squares[rank]), f"rank {rank}, late {late}"
        for rank, got in enumerate(ranks.run(once, programs.work_then_sum, late=late, delay=0.001)):
            assert torch.equal(got, torch.stack(squares).sum(0)), f"rank {rank}, late {late}"


@pytest.mark.ranks(2, 3, 4)
def test_who_is_late_is_named_by_its_own_time(ranks: Ranks) -> None:
    for late in range(ranks.world_size):
        # The shorter of two: a busy host may hold up any rank once.
        alone = [min(taken) for taken in ranks.run(seconds_of, programs.work, late)]
        assert alone.index(max(alone)) == late, f"seconds of each rank: {alone}"
        assert max(alone) > ABOUT * DELAY
        assert min(alone) < DELAY / 2, f"a rank waited though nobody is waited for: {alone}"


@pytest.mark.ranks(2, 3, 4)
def test_all_wait_for_the_late_one(ranks: Ranks) -> None:
    for late in (0, ranks.world_size - 1):
        together = [min(taken) for taken in ranks.run(seconds_of, programs.work_then_sum, late)]
        assert min(together) > ABOUT * DELAY, f"a rank did not wait for rank {late}: {together}"
