"""Bounds by chance: of a median by order statistics, and of the share of places that are dropped at random."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
import torch

ERROR = 0.05
"""The chance that the median is beyond one of the bounds, at most."""


def bounds_of_median(samples: Sequence[float]) -> tuple[float, float]:
    """Two samples between which the median lies, each side with 95 %; the extremes of fewer than five samples."""
    ordered, count = sorted(samples), len(samples)
    skipped, beyond = 0, 1  # of 2**count ways in which the samples lie around the median
    while (beyond := beyond + math.comb(count, skipped + 1)) / 2**count <= ERROR:
        skipped += 1
    return ordered[skipped], ordered[-1 - skipped]


FALSE_ALARM = 1e-9
"""How likely a right dropout is to be taken for a wrong one."""


def most_off(n: int) -> float:
    """How far a mean of n independent values between 0 and 1 may be off.

    By more than t with probability 2 exp(-2 n t^2) at most (Hoeffding 1963, theorem 1).
    """
    return math.sqrt(math.log(2 / FALSE_ALARM) / (2 * n))


def assert_agree(where: str, one: torch.Tensor, other: torch.Tensor, p: float) -> None:
    """Two masks, or halves of one, agree in as many places as independent ones do."""
    share, t = float((one == other).double().mean()), most_off(one.numel())
    assert share == pytest.approx(p**2 + (1 - p) ** 2, abs=t), f"{where} share {share:.3f} of a mask"


def assert_independent(kept: Mapping[str, torch.Tensor], p: float) -> None:
    """Masks of one size keep a share 1 - p of their places, and any two agree as often as chance has it."""
    for where, mask in kept.items():
        share, t = float(mask.double().mean()), most_off(mask.numel())
        assert share == pytest.approx(1 - p, abs=t), f"{where} keeps {share:.3f} of its places, not {1 - p}"
    for one, other in itertools.combinations(kept, 2):
        assert_agree(f"{one} and {other}", kept[one], kept[other], p)
