"""Straight pieces of a curve of time over size: latency and bandwidth of each protocol. Knows no torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = 3  # points of a piece: two would lie on any line
CLOSE = 0.02  # relative; a fit that is closer than this gains nothing by another piece
NUMBERS = 3  # that describe a piece: its two, and where it begins


@dataclass(frozen=True, slots=True)
class Regime:
    """Sizes whose time is ``alpha + size / beta``, the model of Hockney (Parallel Computing 20, 1994)."""

    first: int
    """The smallest size in bytes."""
    last: int
    """The largest."""
    alpha: float
    """Seconds of latency."""
    beta: float
    """Bytes per second; infinite if the time does not grow with the size."""
    residual: float
    """How far the farthest point is off the line, as a fraction of its time."""


@dataclass(frozen=True, slots=True)
class _Piece:
    alpha: float
    slope: float
    """Seconds per byte."""
    squares: float
    """Sum of the squared relative residuals."""
    farthest: float


def find_regimes(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[Regime, ...]:
    """Finds the pieces of a curve; how many there are is found, too.

    Of all ways to cut the curve into pieces of three points at least, it takes the one with the smallest Bayesian
    information criterion (Schwarz, Annals of Statistics 6, 1978) of the relative residuals.

    Args:
        sizes: bytes, increasing.
        seconds: of each size.

    Returns:
        The pieces from the smallest size up; none for a curve of fewer than three points.
    """
    n = len(sizes)
    if n < LEAST:
        return ()
    pieces = {
        (begin, end): _fit(sizes[begin:end], seconds[begin:end])
        for begin, end in itertools.combinations(range(n + 1), 2)
        if end - begin >= LEAST
    }
    # best[k][end]: the smallest sum of squares of so many points in k pieces, and where the last one begins.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for _ in range(n // LEAST):
        before = best[-1]
        found: dict[int, tuple[float, int]] = {}
        for (begin, end), piece in pieces.items():
            if begin in before:
                found[end] = min(found.get(end, (math.inf, 0)), (before[begin][0] + piece.squares, begin))
        best.append(found)

    def criterion(count: int) -> float:
        mean = max(best[count][n][0] / n, CLOSE**2)
        return n * math.log(mean) + NUMBERS * count * math.log(n)

    count = min((count for count in range(1, len(best)) if n in best[count]), key=criterion)
    cuts = [n]
    for left in range(count, 0, -1):
        cuts.append(best[left][cuts[-1]][1])
    return tuple(
        _make_regime(sizes[begin], sizes[end - 1], pieces[begin, end])
        for begin, end in itertools.pairwise(reversed(cuts))
    )


def _make_regime(first: int, last: int, piece: _Piece) -> Regime:
    return Regime(first, last, piece.alpha, 1 / piece.slope if piece.slope else math.inf, piece.farthest)


def _fit(sizes: Sequence[int], seconds: Sequence[float]) -> _Piece:
    """The line of least squares of relative residuals; neither its latency nor its slope is negative."""
    # With y = 1 = alpha * a + slope * b, for a = 1 / t and b = size / t.
    a = [1 / second for second in seconds]
    b = [size / second for size, second in zip(sizes, seconds, strict=True)]
    aa, bb, ab = (sum(map(_multiply, left, right)) for left, right in ((a, a), (b, b), (a, b)))
    determinant = aa * bb - ab * ab
    flat, steep = (sum(a) / aa, 0.0), (0.0, sum(b) / bb)
    lines = [flat, steep]
    if determinant > 0:
        line = (sum(a) * bb - sum(b) * ab) / determinant, (sum(b) * aa - sum(a) * ab) / determinant
        lines += [line] if min(line) >= 0 else []

    def residuals(line: tuple[float, float]) -> list[float]:
        return [line[0] * of_a + line[1] * of_b - 1 for of_a, of_b in zip(a, b, strict=True)]

    line = min(lines, key=lambda one: sum(map(_multiply, residuals(one), residuals(one))))
    off = residuals(line)
    return _Piece(*line, sum(map(_multiply, off, off)), max(map(abs, off)))


def _multiply(left: float, right: float) -> float:
    return left * right
