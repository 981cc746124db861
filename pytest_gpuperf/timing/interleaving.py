"""Samples of several arms taken in turn, there and back. Runs in rank processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from pytest_gpuperf.figures.precision import compute_halfwidth
from pytest_gpuperf.timing.clock import list_punctual, reduce_to_slowest
from pytest_gpuperf.timing.measure import Timed
from pytest_gpuperf.timing.sampling import BATCH, MIN_SAMPLES

Ratios: TypeAlias = Callable[[Sequence[Sequence[float]]], list[float]]
"""Makes one number for each block of the slowest rank's samples of each arm, two a block."""

BLOCKS = BATCH // 2  # between two looks at the precision
MIN_BLOCKS = MIN_SAMPLES // 2


def interleave(arms: Sequence[Timed], ratios: Ratios, precision: float, device: torch.device) -> list[list[float]]:
    """Seconds of each arm, two a block, from blocks of ABBA, ABCCBA and so on.

    A drift over a block weighs on all arms alike. Blocks are added until the median of ``ratios`` is as precise as
    asked for, an arm has as many samples as its plan affords, or the first one's budget is spent. All ranks stop
    together. A block in which a sample waited for a host does not count: see ``list_punctual``.
    """
    most = max(1, min(arm.plan.samples for arm in arms) // 2)
    budget, began = arms[0].budget, time.perf_counter()
    there = range(len(arms))
    seconds: list[list[float]] = [[] for _ in arms]
    found: list[float] = []
    late: list[float] = []
    kept: list[int] = []
    while len(kept) < most:
        few = MIN_BLOCKS - len(kept)
        before, blocks = len(found), min(few if few > 0 else BLOCKS - len(kept) % BLOCKS, most - len(kept))
        mine = [0.0] * blocks
        for block in range(blocks):
            for index in (*there, *reversed(there)):
                seconds[index].append(arms[index].sample())
                mine[block] = max(mine[block], float(arms[index].late))
        found += ratios([reduce_to_slowest(arm[2 * before :], device) for arm in seconds])
        *told, lasted = reduce_to_slowest([*mine, time.perf_counter() - began], device)
        late += told
        kept = list_punctual(late)
        if compute_halfwidth([found[block] for block in kept]) <= precision:
            break
        if lasted >= budget and len(kept) >= MIN_BLOCKS:
            break
    return [[sample for block in kept for sample in arm[2 * block : 2 * block + 2]] for arm in seconds]
