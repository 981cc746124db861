"""A size means what nccl-tests means by it, and each size's step gives what the collective's definition says."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Context, KiB, Ranks
from suites.collectives.programs.sweeping import DTYPE, OPERATIONS, at_sizes, of_size

# Bytes that a rank starts with and ends with, of S bytes and R ranks (nccl-tests, doc/PERFORMANCE.md).
HELD = {
    "all_reduce": lambda size, ranks: (size, size),
    "all_gather": lambda size, ranks: (size // ranks, size),
    "reduce_scatter": lambda size, ranks: (size, size // ranks),
    "all_to_all": lambda size, ranks: (size, size),
    "broadcast": lambda size, ranks: (size, size),
    "send_recv": lambda size, ranks: (size, size),
}


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_size_is_that_of_nccl_tests(op: str, ranks: int) -> None:
    case = of_size(op, KiB, ranks)
    for rank in range(ranks):
        held = case.started(rank) * DTYPE.itemsize, (case.ended(rank) or 0) * DTYPE.itemsize
        assert held == HELD[op](KiB, ranks), f"rank {rank}: bytes at the start and at the end"


@pytest.mark.parametrize("op", OPERATIONS)
def test_each_rank_has_an_element_at_least(op: str) -> None:
    """However small the size is: one that is rounded down to nothing would be moved in no time."""
    assert of_size(op, 2, 8).numel == 1
    assert of_size(op, 1, 2).numel == 1


def in_turn(ctx: Context, op: str, sizes: list[int]) -> None:
    """The first step of each size, compared on the ranks."""
    step_of = at_sizes(ctx, sizes=sizes, collective=op)
    for nbytes in sizes:
        output = step_of(nbytes)()
        assert isinstance(output, torch.Tensor)
        of_size(op, nbytes, ctx.world_size).assert_right(ctx.rank, output)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("op", OPERATIONS)
def test_each_size_is_right(ranks: Ranks, op: str) -> None:
    ranks.run(in_turn, op, [8, KiB, 141 * KiB])
