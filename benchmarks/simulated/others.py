"""Simple rules, as others use them. Each returns which checks it calls a regression.

Arrays hold logarithms, a row for each check and a column for each launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.simulated.noise import Array
from pytest_gpuperf.figures.student import upper_quantile

Flags: TypeAlias = npt.NDArray[np.bool_]

FIVE, TWO = math.log(1.05), math.log(1.02)
FRESH = 5
MEGATRON_RERUNS = 10
STEP = 0.5  # degrees of freedom are rounded down to it, so that few quantiles are computed


def once(record: Array, today: Array) -> Flags:
    """More than 1.05 of the record's median, in one launch: ReFrame's reference, pytest-benchmark's mean:5%."""
    return np.asarray(today[:, 0] - np.median(record, axis=1) > FIVE)


def all_of_5_reruns(record: Array, today: Array) -> Flags:
    """More than 1.05 of the record's median, in the launch and in all of 5 reruns."""
    slower = today[:, : 1 + FRESH] - np.median(record, axis=1)[:, None] > FIVE
    return np.asarray(slower.all(axis=1))


def megatron(record: Array, today: Array) -> Flags:
    """Megatron-LM's moe_perf: more than 1.02 of one golden launch, in the launch and in all of 10 reruns."""
    slower = today[:, : 1 + MEGATRON_RERUNS] - record[:, :1] > TWO
    return np.asarray(slower.all(axis=1))


def welch(record: Array, today: Array) -> Flags:
    """5 launches against the record, Welch's t test at 1 % / N, and slower by more than 1.5 %."""
    fresh = today[:, :FRESH]
    loss = fresh.mean(axis=1) - record.mean(axis=1)
    parts = [(logs.var(axis=1, ddof=1) / logs.shape[1], logs.shape[1] - 1) for logs in (fresh, record)]
    variance = sum(part for part, _ in parts)
    dof = variance**2 / sum(part**2 / count for part, count in parts)
    grid = np.maximum(1.0, np.floor(dof / STEP) * STEP)
    quantiles = {value: upper_quantile(0.01 / len(loss), value) for value in np.unique(grid).tolist()}
    surely = np.array([quantiles[value] for value in grid.tolist()])
    return np.asarray((loss > surely * np.sqrt(variance)) & (loss > math.log(1.015)))


OTHERS: Mapping[str, Callable[[Array, Array], Flags]] = {
    "1.05x once": once,
    "1.05x, and all of 5 reruns": all_of_5_reruns,
    "Megatron 1.02x, 10 reruns": megatron,
    "Welch of 5 launches": welch,
}
