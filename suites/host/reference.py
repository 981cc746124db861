"""The figures that the times of cores come to."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import numpy as np

WINDOWS = 10


def speeds(cores: Sequence[Sequence[float]], *, windows: int = WINDOWS) -> list[list[float]]:
    """Steps per second of each core in each of the windows into which the time is cut that all cores worked.

    A step that lies in two windows counts in both, by its part.

    Args:
        cores: For each core, when it began and when each of its steps ended.
        windows: How many.
    """
    edges = np.linspace(max(times[0] for times in cores), min(times[-1] for times in cores), windows + 1)
    length = edges[1] - edges[0]
    return [(np.diff(np.interp(edges, times, range(len(times)))) / length).tolist() for times in cores]


def shares(by_core: Sequence[Sequence[float]]) -> list[float]:
    """Which share of all cores there is, in each window: 1 if all are as fast as the fastest one of the window."""
    return [statistics.fmean(window) / max(window) for window in zip(*by_core, strict=True)]


def whole_cores(cores: Sequence[Sequence[float]]) -> list[float]:
    """How many undisturbed cores do the work of all cores, in each window.

    The fastest step of any core is taken for that of an undisturbed one. If all cores are held up at the same time, as
    by a quota, the share is still 1, and this number falls.
    """
    fastest = max(1 / (end - start) for times in cores for start, end in itertools.pairwise(times))
    return [sum(window) / fastest for window in zip(*speeds(cores), strict=True)]


def rates(cores: Sequence[Sequence[float]], nbytes: int, *, windows: int = WINDOWS) -> list[float]:
    """Bytes per second of all cores together in each window, of copies that read and write so many bytes each."""
    return [2 * nbytes * sum(window) for window in zip(*speeds(cores, windows=windows), strict=True)]


def evenness(by_node: Sequence[Sequence[float]]) -> list[float]:
    """The slowest node's rate over the fastest node's, in each window; the nodes are those of the medians."""
    ordered = sorted(by_node, key=statistics.median)
    return [slow / fast for slow, fast in zip(ordered[0], ordered[-1], strict=True)]
