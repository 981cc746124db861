"""What the checks of a suite tell of each other's spread: how far launches scatter usually, and how alike that is.

Smyth, Linear models and empirical Bayes methods for assessing differential expression in microarray experiments,
Statistical Applications in Genetics and Molecular Biology 3 (2004), article 3. The model is that of its section 4: a
check's variance is one of a scaled inverse chi-square distribution, whose degrees of freedom say how alike the checks
are; section 6.2 estimates them.
"""

import math
import statistics
from collections.abc import Sequence

from pytest_gpuperf.verdicts.history import History

# The variance of n logarithms of variances is off by sqrt(2 / n) of itself, as much as what is to be told from it where
# they are fewer.
FEWEST = 10

LEAST_ALIKE = 0.1  # degrees of freedom: a prior worth less changes no spread

ASYMPTOTIC_FROM = 8.0  # of the argument; the error of the series is below 1e-8 there


def prior_spread(histories: Sequence[History]) -> float:
    """The suite's spread: the root of the median variance of the histories that have one.

    Raises:
        ValueError: If none has 2 launches.
    """
    variances = [history.spread**2 for history in histories if history.launches > 1]
    if not variances:
        raise ValueError(
            f"{len(histories)} histories have no 2 launches, expected one that has: record more than one launch"
        )
    return math.sqrt(statistics.median(variances))


def prior_dof(histories: Sequence[History], floor: float) -> float:
    """How alike the checks' spreads are: the degrees of freedom that the suite's is worth in the estimate of one.

    The d0 of var(ln s^2) = mean(trigamma(d / 2)) + trigamma(d0 / 2), s the spreads and d their degrees of freedom:
    Smyth 2004, section 6.2, without its correction of the mean for unlike d, which is small. Infinity where they
    differ by no more than chance, and of fewer than 10 checks, which do not tell.

    Args:
        histories: One for each check.
        floor: The least spread that is believed; smaller ones count as this, and chance has no part in them.
    """
    known = [history for history in histories if history.dof > 0]
    if len(known) < FEWEST:
        return math.inf
    differ = statistics.variance(2 * math.log(max(floor, history.spread)) for history in known)
    by_chance = statistics.fmean(_trigamma(history.dof / 2) if history.spread > floor else 0.0 for history in known)
    return 2 * _trigamma_inverse(differ - by_chance)


def _trigamma(x: float) -> float:
    """The second derivative of ln gamma: DLMF 5.15.8 (asymptotic series) and 5.15.5 (recurrence)."""
    below = 0.0
    while x < ASYMPTOTIC_FROM:
        below += 1 / x**2
        x += 1
    return below + 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5) + 1 / (42 * x**7)


def _trigamma_inverse(y: float) -> float:
    """The x with trigamma(x) = y, by halving; infinity for y up to 0, at least half of LEAST_ALIKE."""
    low, high = LEAST_ALIKE / 2, 1e6
    if y <= _trigamma(high):
        return math.inf
    for _ in range(60):  # trigamma falls from low to high
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _trigamma(middle) > y else (low, middle)
    return low
