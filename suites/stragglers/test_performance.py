"""What a slow rank costs a step, and whether a timing of the ranks' own work names it."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from pytest_gpuperf import Context, Matrix, Metric, MiB, Perf, Ranks
from suites.shared.comparison import assert_close
from suites.shared.ways import connected
from suites.stragglers.programs import late as programs
from suites.stragglers.programs import shared_device, slow_link
from suites.stragglers.programs.slow_link import APART
from suites.stragglers.reference import medians, share_that_all_pay
from suites.stragglers.test_slow_link import assert_exchanged, assert_summed

pytestmark = pytest.mark.perf

DELAY = 0.002
"""Seconds: a hundred times what a step takes otherwise."""
PRODUCTS = 4
"""Products of a rank, and as many of the neighbour on its device: a quarter of a millisecond each on an H200."""
WIDTH = 2048
LEAST = 1.2
"""Times what the others take, by who shares its device; it should be about twice."""


def square(ctx: Context, got: torch.Tensor, steps: int, *, width: int) -> None:
    """The rank's own."""
    assert_close(got.double(), squared(ctx, ctx.rank, width), f"rank {ctx.rank}")


def total(ctx: Context, got: torch.Tensor, steps: int, *, width: int) -> None:
    """The sum of all ranks' squares."""
    expected = torch.stack([squared(ctx, rank, width) for rank in range(ctx.world_size)]).sum(0)
    assert_close(got.double(), expected, f"rank {ctx.rank}")


def squared(ctx: Context, rank: int, width: int) -> torch.Tensor:
    """A rank's square, in float64."""
    x = programs.matrix(rank, width=width).to(ctx.device).double()
    return x @ x


@pytest.mark.ranks(2, 4, 8, largest=True)
@pytest.mark.parametrize("late", ["first", "last"])
def test_late_rank(perf: Perf, late: str) -> None:
    rank = 0 if late == "first" else perf.world_size - 1
    brief = perf.configured(budget=0.1)
    summed, own = (partial(verify, width=programs.WIDTH) for verify in (total, square))
    even = brief.measure(programs.work_then_sum, verify=summed, late=None, delay=DELAY)
    held_up = brief.measure(programs.work_then_sum, verify=summed, late=rank, delay=DELAY)
    alone = brief.measure(programs.work, verify=own, late=rank, delay=DELAY)
    assert perf.smoke or alone.slowest_rank == rank, (
        f"rank {alone.slowest_rank} takes longest by itself, and rank {rank} was delayed by {DELAY} s"
    )
    perf.check(cost_of_the_delay=share_that_all_pay(even, held_up, alone, rank))
    perf.show(even=even.time, held_up=held_up.time)


@pytest.mark.ranks(2, 4, 8, largest=True)
@pytest.mark.parametrize("shared", ["first", "last"])
def test_shared_gpu(perf: Perf, shared: str) -> None:
    """One rank's products have to share its GPU with as many others."""
    rank = 0 if shared == "first" else perf.world_size - 1
    width = perf.sized(WIDTH, smoke=64)
    work = {"width": width, "own": PRODUCTS, "beside": PRODUCTS}
    brief = perf.configured(budget=0.1)
    summed, own = (partial(verify, width=width) for verify in (total, square))
    even = brief.measure(shared_device.products_then_sum, verify=summed, shared=None, **work)
    held_up = brief.measure(shared_device.products_then_sum, verify=summed, shared=rank, **work)
    alone = brief.measure(shared_device.products, verify=own, shared=rank, **work)
    taken = medians(alone)
    others = max(seconds for each, seconds in enumerate(taken) if each != rank)
    assert perf.smoke or (alone.slowest_rank == rank and taken[rank] > LEAST * others), (
        f"rank {rank} shares its GPU, expected it to take {LEAST} times what the others take; seconds of each: {taken}"
    )
    perf.check(cost_of_sharing=share_that_all_pay(even, held_up, alone, rank))
    perf.show(even=even.time, held_up=held_up.time, own_slowdown=Metric(taken[rank] / others, "x", "lower"))


@pytest.mark.ranks(3, 4, 8, largest=True, nccl_log=True, env=slow_link.ENVIRON)
def test_gpu_behind_sockets(perf: Perf, ranks: Ranks) -> None:
    """NCCL reaches one GPU by sockets alone: the pairs' times name it, and a sum of all goes at its pace."""
    if not perf.smoke:
        slow_link.require_one_apart(ranks.run(connected))
    nbytes = perf.sized(4 * MiB, smoke=64)
    everybody = list(range(perf.world_size))
    brief = perf.configured(budget=0.05)
    pairs = {
        pair: brief.measure(
            slow_link.exchange,
            verify=partial(assert_exchanged, pair=pair, nbytes=nbytes),
            pair=pair,
            nbytes=nbytes,
        ).median
        for pair in slow_link.around(perf.world_size)
    }
    named = slow_link.behind(pairs)
    assert perf.smoke or named == APART, (
        f"the pairs' times name rank {named}, expected rank {APART}, which is behind sockets; seconds of each: {pairs}"
    )
    rates = []
    for among in (everybody, [rank for rank in everybody if rank != APART]):
        verify = partial(assert_summed, among=among, nbytes=nbytes)
        timing = brief.measure(slow_link.sum_among, verify=verify, among=among, nbytes=nbytes)
        rates.append(timing.rate(2 * (len(among) - 1) / len(among) * nbytes, "B/s"))
    everybodys, others = rates
    lost = Metric(others.value / everybodys.value, "x", "lower", samples=everybodys.samples, clock=everybodys.clock)
    perf.check(bandwidth_lost=lost)
    taken = {**{pair[::-1]: seconds for pair, seconds in pairs.items()}, **pairs}
    rows = [
        [nbytes / taken[row, column] if (row, column) in taken else None for column in everybody] for row in everybody
    ]
    perf.show(everybody=everybodys, without_it=others, pairs=Matrix.of(rows, "B/s", "higher"))
