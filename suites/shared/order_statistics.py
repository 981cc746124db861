"""Bounds of a median by order statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence

ERROR = 0.05
"""The chance that the median is beyond one of the bounds, at most."""


def bounds_of_median(samples: Sequence[float]) -> tuple[float, float]:
    """Two samples between which the median lies, each side with 95 %; the extremes of fewer than five samples."""
    ordered, count = sorted(samples), len(samples)
    skipped, beyond = 0, 1  # of 2**count ways in which the samples lie around the median
    while (beyond := beyond + math.comb(count, skipped + 1)) / 2**count <= ERROR:
        skipped += 1
    return ordered[skipped], ordered[-1 - skipped]
