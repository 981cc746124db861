"""A rank that shares its device computes what it should, its own time names it, and all wait for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.shared.step import Step, second
from suites.shared.step_seconds import seconds_of_steps
from suites.stragglers.programs import shared_device as programs
from suites.stragglers.programs.late import matrix

WIDTH = 128
OWN, BESIDE = 4, 80
"""Products. So many beside the own ones that a busy host does not hide them."""
STEPS = 40
ABOUT = 2.0
"""Times what the others take, by one rank with twenty times their products beside its own."""


def squares(ranks: int) -> list[torch.Tensor]:
    return [matrix(rank, width=WIDTH) @ matrix(rank, width=WIDTH) for rank in range(ranks)]


def seconds_of(ctx: Context, program: Callable[..., Step[torch.Tensor]], shared: int, shorter: int = 0) -> float:
    """The shortest of many steps, but for so many: other tests may take a rank's core for some of them.

    The products have one thread. Several would wait for each other in each product while other tests have their cores.
    """
    step = program(ctx, shared=shared, width=WIDTH, own=OWN, beside=BESIDE)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return sorted(seconds_of_steps(ctx, step, STEPS))[shorter]
    finally:
        torch.set_num_threads(threads)


@pytest.mark.ranks(2, 3, 4)
def test_nothing_but_time_changes(ranks: Ranks) -> None:
    expected = squares(ranks.world_size)
    total = torch.stack(expected).sum(0)
    for shared in (None, 0, ranks.world_size - 1):
        sizes = {"shared": shared, "width": WIDTH, "own": 1, "beside": 2}
        for rank, got in enumerate(ranks.run(second, programs.products, **sizes)):
            assert torch.equal(got, expected[rank]), f"rank {rank}, shared {shared}"
        for rank, got in enumerate(ranks.run(second, programs.products_then_sum, **sizes)):
            assert torch.equal(got, total), f"rank {rank}, shared {shared}"


@pytest.mark.ranks(2, 3, device="cpu")  # other tests may share a GPU; the perf test has it alone
def test_who_shares_its_device_is_named_by_its_own_time(ranks: Ranks) -> None:
    for shared in range(ranks.world_size):
        alone = ranks.run(seconds_of, programs.products, shared)
        assert alone.index(max(alone)) == shared, f"seconds of each rank: {alone}"
        others = [seconds for rank, seconds in enumerate(alone) if rank != shared]
        assert max(alone) > ABOUT * max(others), f"rank {shared} shares its device for nothing: {alone}"


@pytest.mark.ranks(2, 3, device="cpu")
def test_all_wait_for_who_shares_its_device(ranks: Ranks) -> None:
    for shared in (0, ranks.world_size - 1):
        alone = ranks.run(seconds_of, programs.products, shared)
        others = [seconds for rank, seconds in enumerate(alone) if rank != shared]
        # A rank whose core was taken before a step is late, and does not wait in that one.
        together = ranks.run(seconds_of, programs.products_then_sum, shared, shorter=STEPS // 4)
        assert min(together) > ABOUT * max(others), f"a rank did not wait for rank {shared}: {together}, {alone}"
