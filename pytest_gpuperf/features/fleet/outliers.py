"""Which hosts are slower than the others: robust z per metric, and how far it must be for so many metrics and hosts.

A host's loss is the difference of logarithms to the median of all hosts, above 0 if it is worse. Its z is the loss over
the spread. The spread is Qn: a quartile of the differences between all pairs of hosts, which slow hosts do not move as
long as they are fewer than half (Rousseeuw and Croux, Alternatives to the Median Absolute Deviation, JASA 88, 1993).
For normal data Qn is worth 82 % of the hosts, the median absolute deviation only 37 %: in small fleets that decides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pytest_gpuperf.features.fleet.results_of_hosts import Figure
from pytest_gpuperf.figures.student import upper_quantile

CHANCE = 0.001
"""Probability that a comparison accuses any host of a fleet in which none is slow."""
LEAST_LOSS = 0.015  # never worth an accusation, however sure; the judge's own bound
LEAST_SPREAD = 0.001  # as a logarithm: metrics of some digits are equal on many hosts, and a spread of 0 accuses all
LEAST_HOSTS = 5  # a median of fewer has no deviation that means anything
FEW = 8  # fewer hosts know their spread so badly that Student's t lets a loss of 40 % pass
LOSS_OF_FEW = 0.1  # what one of few must lose against the others; GPUs of one kind are within 3 % of one another
_HALVINGS = 50  # of the range of all values: what is left is the last digit of a float
_NORMAL = 2.2219  # 1 / (sqrt(2) * the 5/8 quantile of a normal distribution): Rousseeuw and Croux, section 3
_EFFICIENCY = 0.82  # of Qn against the standard deviation, for many normal values: the same, section 3
_FEWER = 2.7  # values; by so much Qn's efficiency falls for few, in simulations of 8 to 128


@dataclass(frozen=True, slots=True)
class Standing:
    """One host's metric among those of all."""

    host: str
    value: float
    loss: float
    """As a logarithm; above 0 is worse."""
    z: float
    """Loss over spread; NaN if there are too few hosts to know a spread."""
    slow: bool
    """Whether chance does not explain it."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric over all hosts."""

    figure: Figure
    median: float
    spread: float
    """As a logarithm."""
    seen: float
    """The loss from which on a host is accused, as a fraction."""
    standings: tuple[Standing, ...]
    """The slowest first."""

    @property
    def slow(self) -> tuple[Standing, ...]:
        """The hosts that are accused, the slowest first."""
        return tuple(standing for standing in self.standings if standing.slow)


def compare(figures: Sequence[Figure], chance: float = CHANCE, independent: float = 1.0) -> tuple[Compared, ...]:
    """Compares the hosts in each metric that enough of them measured.

    Every metric of every host may be accused by chance, so each has an equal share of it (Bonferroni). The spread is
    known as from 0.82 times as many hosts, or fewer if there are few. So z is held against Student's t with so many
    degrees of freedom.

    Args:
        figures: Of one hardware.
        chance: How likely any host is accused wrongly.
        independent: The share of the metrics that do not follow from the others.
    """
    enough = [figure for figure in figures if len(figure.values) >= LEAST_HOSTS]
    tests = sum(len(figure.values) for figure in enough)
    return tuple(_compare(figure, chance / tests, independent) for figure in enough)


def find_odd_hosts(
    figure: Figure, others: Callable[[Iterable[float]], float] = statistics.median
) -> tuple[Standing, ...]:
    """The hosts that lose a tenth or more against the others, the slowest first; for fewer than ``FEW`` hosts.

    The slowest is named first, and the next is held against those that are left.

    Args:
        figure: of two hosts or more; of fewer none is named.
        others: makes of the others' losses what the slowest is held against.
    """
    sign = -1.0 if figure.better == "higher" else 1.0
    logs = {host: sign * math.log(value) for host, value in figure.values.items()}
    found = []
    while len(logs) > 1:
        host = max(logs, key=lambda one: logs[one])
        loss = logs.pop(host) - others(logs.values())
        if loss < -math.log1p(-LOSS_OF_FEW):
            break
        found.append(Standing(host, figure.values[host], loss, math.nan, slow=True))
    return tuple(found)


def compute_spread(values: Sequence[float]) -> float:
    """Qn of the values: their standard deviation if they are normal, whatever fewer than half of them are.

    Args:
        values: Two or more.
    """
    n = len(values)
    half = n // 2 + 1
    # The factor for few values: Croux and Rousseeuw, Time-Efficient Algorithms for Two Highly Robust Estimators of
    # Scale, Compstat 1992, for n > 9.
    few = n / (n + 1.4) if n % 2 else n / (n + 3.8)
    return _NORMAL * few * _find_ranked_difference(sorted(values), half * (half - 1) // 2)


def _find_ranked_difference(ordered: Sequence[float], rank: int) -> float:
    """The difference of two values that has this rank among those of all pairs, from 1 on.

    By halving: a thousand hosts of eight GPUs have more pairs than memory.

    Args:
        ordered: the values, the smallest first.
        rank: its place.
    """
    low, high = 0.0, ordered[-1] - ordered[0]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _count_pairs_within(ordered, middle) >= rank:
            high = middle
        else:
            low = middle
    return high


def _count_pairs_within(ordered: Sequence[float], difference: float) -> int:
    """How many pairs of values differ by no more."""
    pairs = first = 0
    for place, value in enumerate(ordered):
        while value - ordered[first] > difference:
            first += 1
        pairs += place - first
    return pairs


def _compare(figure: Figure, tail: float, independent: float) -> Compared:
    sign = -1.0 if figure.better == "higher" else 1.0
    logs = {host: sign * math.log(value) for host, value in figure.values.items()}
    center = statistics.median(logs.values())
    spread = max(compute_spread(list(logs.values())), LEAST_SPREAD)
    degrees = independent * _EFFICIENCY * len(logs) / (len(logs) + _FEWER) * (len(logs) - 1)
    bound = max(upper_quantile(tail, degrees) * spread, LEAST_LOSS)
    standings = [
        Standing(host, figure.values[host], log - center, (log - center) / spread, log - center > bound)
        for host, log in logs.items()
    ]
    return Compared(
        figure,
        math.exp(sign * center),
        spread,
        -math.expm1(-bound) if figure.better == "higher" else math.expm1(bound),
        tuple(sorted(standings, key=lambda standing: (-standing.loss, standing.host))),
    )
