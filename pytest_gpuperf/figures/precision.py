"""When a median is known well enough. Knows no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISS = 0.025  # on either side: an interval of 95 %


def compute_median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """A 95 % interval of the median, whatever the distribution; None below 6 values, which are too few for one.

    From the r-th smallest to the r-th largest value, r the largest number of which P(B < r) <= 2.5 % with B
    binomial of n trials and 1/2 (W. J. Conover, Practical Nonparametric Statistics, 3rd edition, section 3.2).
    """
    n = len(values)
    below, r = 0.0, 0
    while below + math.comb(n, r) / 2**n <= MISS:
        below += math.comb(n, r) / 2**n
        r += 1
    if r == 0:
        return None
    ordered = sorted(values)
    return ordered[r - 1], ordered[n - r]


def compute_halfwidth(values: Sequence[float]) -> float:
    """Half the width of the median's interval, as a fraction of its middle; infinite where there is none."""
    interval = compute_median_interval(values)
    if interval is None:
        return math.inf
    low, high = interval
    return (high - low) / (high + low)
