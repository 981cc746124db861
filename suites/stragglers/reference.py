"""What the timings of steps with a slow rank say of it."""

from __future__ import annotations

import statistics

from pytest_gpuperf import Metric, Timing


def medians(timing: Timing) -> list[float]:
    """The median of each rank's own samples."""
    return [statistics.median(samples.seconds) for samples in timing.ranks]


def share_that_all_pay(even: Timing, held_up: Timing, alone: Timing, rank: int) -> Metric:
    """How much of what a rank is slower by itself, every step with a sum is slower: 1.0 is all of it."""
    own = medians(alone)
    slower = own[rank] - min(own)
    # With --smoke two samples may tell of no delay at all.
    cost = max(held_up.median - even.median, slower / 100) / slower if slower > 0 else 1.0
    return Metric(cost, "x", "lower", samples=len(held_up.samples), clock=held_up.time.clock)
