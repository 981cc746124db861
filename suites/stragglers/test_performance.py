"""What a late rank costs a step, and whether a timing of the ranks' own work names it."""

from __future__ import annotations

import statistics

import pytest

from pytest_gpuperf import Context, Metric, Perf
from suites.shared.comparison import assert_close
from suites.stragglers import programs

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2, 4, 8, largest=True)]

DELAY = 0.002
"""Seconds: a hundred times what a step takes otherwise."""


def product(ctx: Context, got: object, steps: int) -> None:
    """The rank's own square."""
    x = programs.matrix(ctx.rank)
    assert_close(got.cpu(), x @ x, f"rank {ctx.rank}")  # type: ignore[attr-defined]


def total(ctx: Context, got: object, steps: int) -> None:
    """The sum of all ranks' squares."""
    squares = [programs.matrix(rank) for rank in range(ctx.world_size)]
    expected = sum(x @ x for x in squares)
    assert_close(got.cpu(), expected, f"rank {ctx.rank}")  # type: ignore[attr-defined, arg-type]


@pytest.mark.parametrize("late", ["first", "last"])
def test_late_rank(perf: Perf, late: str) -> None:
    rank = 0 if late == "first" else perf.world_size - 1
    brief = perf.configured(budget=0.1)
    even = brief.measure(programs.work_then_sum, verify=total, late=None, delay=DELAY)
    held_up = brief.measure(programs.work_then_sum, verify=total, late=rank, delay=DELAY)
    alone = brief.measure(programs.work, verify=product, late=rank, delay=DELAY)
    assert perf.smoke or alone.slowest_rank == rank, (
        f"rank {alone.slowest_rank} takes longest by itself, and rank {rank} was delayed by {DELAY} s"
    )
    # How long the late rank was delayed, its own time tells. All of it reaches every rank's step, and no more.
    medians = [statistics.median(samples.seconds) for samples in alone.ranks]
    delay = medians[rank] - min(medians) if max(medians) > min(medians) else DELAY
    cost = max(held_up.median - even.median, delay / 100) / delay
    perf.check(cost_of_the_delay=Metric(cost, "x", "lower", samples=len(held_up.samples), clock=held_up.time.clock))
    perf.show(even=even.time, held_up=held_up.time)
