"""A rank that shares its device computes what it should, its own time names it, and all wait for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.shared.delays import Moving, moved_by
from suites.shared.step import Step, second, seconds_of_steps
from suites.shared.waiting import end_without, waited
from suites.stragglers.programs import shared_device as programs
from suites.stragglers.programs.late import matrix

WIDTH = 128
OWN, BESIDE = 4, 80
"""Products."""
STEPS = 2
HOLDS_UP = (programs.Neighbour, "begin")


def squares(ranks: int) -> list[torch.Tensor]:
    return [matrix(rank, width=WIDTH) @ matrix(rank, width=WIDTH) for rank in range(ranks)]


def step_of(ctx: Context, program: Callable[..., Step[torch.Tensor]], shared: int) -> Step[torch.Tensor]:
    return program(ctx, shared=shared, width=WIDTH, own=OWN, beside=BESIDE)


def seconds_of(ctx: Context, program: Callable[..., Step[torch.Tensor]], shared: int) -> list[float]:
    """Return how long each of two steps takes this rank, on a clock that each product moves by a second."""
    with moved_by(Moving(torch, "mm", lambda *_, **__: 1.0)):
        return seconds_of_steps(ctx, step_of(ctx, program, shared), STEPS)


def waiting(ctx: Context, program: Callable[..., Step[torch.Tensor]], shared: int) -> list[bool]:
    """Return for each of two steps whether this rank waited for the one whose neighbour comes late."""
    step = step_of(ctx, program, shared)
    return waited(ctx, step, STEPS, holds_up=HOLDS_UP, note=f"rank {shared} shares its device")


def going_on(ctx: Context, program: Callable[..., Step[torch.Tensor]], shared: int) -> None:
    """Take two steps that the others end before the neighbour begins."""
    step = step_of(ctx, program, shared)
    end_without(ctx, step, STEPS, holds_up=HOLDS_UP, note=f"rank {shared} has a neighbour")


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


@pytest.mark.ranks(2, 3, device="cpu")  # on a GPU the neighbour's products run at the same time
def test_who_shares_its_device_is_named_by_its_own_time(ranks: Ranks) -> None:
    for shared in range(ranks.world_size):
        alone = ranks.run(seconds_of, programs.products, shared)
        expected = [[OWN + BESIDE * (rank == shared)] * STEPS for rank in range(ranks.world_size)]
        assert alone == expected, f"rank {shared} shares its device"
        ranks.run(going_on, programs.products, shared)


@pytest.mark.ranks(2, 3, device="cpu")
def test_all_wait_for_who_shares_its_device(ranks: Ranks) -> None:
    for shared in (0, ranks.world_size - 1):
        found = ranks.run(waiting, programs.products_then_sum, shared)
        assert found == [[True] * STEPS] * ranks.world_size, f"a rank did not wait for rank {shared}"
