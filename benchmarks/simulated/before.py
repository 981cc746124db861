"""The rule before: one launch screens, 5 to 25 fresh launches are held against the record.

A copy of what the simulation needs of verdicts/rule.py, history.py and prior.py as they were until November 2026, for
comparison. docs/dev/judge-simulation.txt compares both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.figures.student import upper_quantile
from pytest_gpuperf.verdicts.history import compute_spread

FLOOR, PRIOR_DOF, KMIN, KMAX = 0.003, 10.0, 5, 25
DETECT, LEAST = math.log(1.05), math.log(1.015)
SCREEN_MISS, CONFIRM_MISS = 0.02, 0.03
FEWEST_OWN, SURELY_WIDER, FEWEST_ALIKE = 5, 2.0, 10


@dataclass(frozen=True, slots=True)
class Known:
    """A figure's record."""

    launches: int
    center: float
    spread: float
    dof: float


def known(machines: Mapping[str, Sequence[float]], here: str) -> Known:
    """Sum up a record: the launches of these very GPUs, if there are 5, else all as one machine's."""
    everything = [log for logs in machines.values() for log in logs]
    own = machines.get(here, ())
    if len(own) < FEWEST_OWN or len(own) == len(everything):
        return Known(len(everything), statistics.median(everything), *compute_spread([everything]))
    (alone, few), (within, dof) = compute_spread([own]), compute_spread(list(machines.values()))
    return Known(len(own), statistics.median(own), max(alone, within), few if alone > SURELY_WIDER * within else dof)


@dataclass(frozen=True, slots=True)
class Before:
    """The rule for a suite."""

    checks: int
    prior: float
    prior_dof: float

    @classmethod
    def of(cls, histories: Sequence[Known]) -> Before:
        """The suite's spread, and how alike its checks are: Smyth 2004, section 6.2."""
        total = sum(history.dof for history in histories)
        logs = [2 * math.log(max(FLOOR, history.spread)) for history in histories]
        alike = math.inf
        if len(histories) >= FEWEST_ALIKE:
            chance = [_trigamma(history.dof / 2) if history.spread > FLOOR else 0.0 for history in histories]
            alike = 2 * _trigamma_inverse(statistics.variance(logs) - statistics.fmean(chance))
        prior = math.sqrt(statistics.median(history.spread**2 for history in histories))
        return cls(len(histories), prior, min(PRIOR_DOF, alike, total - max(history.dof for history in histories)))

    def judged(self, history: Known, today: Sequence[float]) -> tuple[bool, int]:
        """Whether a figure regressed, and how many fresh launches that took; the first of today's screens."""
        dof = self.prior_dof + history.dof
        variance = (self.prior_dof * self.prior**2 + history.dof * history.spread**2) / dof
        spread, m = max(FLOOR, math.sqrt(variance)), history.launches
        one = spread * math.sqrt(1 + math.pi / 2 / m)
        if today[0] - history.center <= DETECT - upper_quantile(SCREEN_MISS, dof) * one:
            return False, 0
        surely, missed = upper_quantile(0.01 / self.checks, dof), upper_quantile(CONFIRM_MISS, math.inf)

        def error(k: int) -> float:
            return spread * math.sqrt(math.pi / 2 * (1 / m + 1 / k))

        def alarm(k: int) -> float:
            return max(LEAST, surely * error(k))

        enough = (k for k in range(KMIN, KMAX + 1) if alarm(k) + missed * error(k) <= DETECT)
        k = next(enough, KMAX)
        return statistics.median(today[1 : 1 + k]) - history.center > alarm(k), k


def _trigamma(x: float) -> float:
    """The second derivative of ln gamma: DLMF 5.15.8 and 5.15.5."""
    below = 0.0
    while x < 8:
        below += 1 / x**2
        x += 1
    return below + 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5) + 1 / (42 * x**7)


def _trigamma_inverse(y: float) -> float:
    low, high = 0.05, 1e6
    if y <= _trigamma(high):
        return math.inf
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _trigamma(middle) > y else (low, middle)
    return low
