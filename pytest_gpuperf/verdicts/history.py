"""What the launches of a baseline tell of a check: where it lies, and how far launches scatter.

The figures are natural logarithms, oriented so that larger is worse.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

# Share of the launches, rounded up, that may be bad and are left out of the spread: those farthest from the median.
# More would leave out what launches do when they are well. On 2 x H200 small collectives have two or three usual
# speeds, 2 to 3 % apart, and the median distance is that within one of them.
BAD = 0.1

# Degrees of freedom of the spread per launch that is kept, after the first. By the variance of the mean square they are
# 0.86 where 4 of 5 launches are kept, 0.91 for 9 of 10, 0.90 for 18 of 20, of a million normal samples each.
KEPT_DOF = 0.8

# How much wider than within all machines a machine's own launches have to scatter before they alone count. Of five
# launches beside fifteen alike, 1 of 100 spreads is twice as wide by chance.
SURELY_WIDER = 2.0


@dataclass(frozen=True, slots=True)
class History:
    """A check's launches in the baseline.

    Raises:
        ValueError: Without a launch, or for figures that are none.
    """

    launches: int
    center: float
    """Median of the launches' logarithms."""
    spread: float
    """Estimated standard deviation of one launch; 0 where there is one only."""
    dof: float
    """Degrees of freedom of the spread."""

    def __post_init__(self) -> None:
        """Refuses what is no history."""
        if type(self.launches) is not int or self.launches < 1:
            raise ValueError(f"history launches is {self.launches!r}, expected a whole number of at least 1")
        if not math.isfinite(self.center):
            raise ValueError(f"history center is {self.center!r}, expected the logarithm of a figure")
        for name in ("spread", "dof"):
            figure = getattr(self, name)
            if not (math.isfinite(figure) and figure >= 0):
                raise ValueError(f"history {name} is {figure!r}, expected a finite number of at least 0")

    @classmethod
    def of(cls, logs: Sequence[float]) -> "History":
        """Sums up launches of one machine.

        Args:
            logs: A launch's logarithm each.

        Raises:
            ValueError: Without a launch, or for a logarithm that is not finite.
        """
        return cls.within([logs])

    @classmethod
    def within(cls, machines: Sequence[Sequence[float]]) -> "History":
        """Sums up launches of several machines; the spread is that of one machine's launches.

        The root mean square of the distances from each machine's own median, each times sqrt(n / (n - 1)), since the
        median of n launches was estimated; without the tenth of them that is largest, and therefore times the factor
        that mends this for normal launches. It comes out up to 6 % narrower than they scatter, where machines have 3
        each, or up to 8 % wider, where they have 5; with 2 each far wider if there are few. Where no machine has two
        launches, all are taken for one machine's.

        Raises:
            ValueError: Without a launch, or for a logarithm that is not finite.
        """
        logs = [log for machine in machines for log in machine]
        refuse_without_logarithms("logs", logs, 1, "record a baseline")
        several = [machine for machine in machines if len(machine) > 1] or [logs]
        distances = sorted(
            abs(log - statistics.median(machine)) * math.sqrt(len(machine) / (len(machine) - 1))
            for machine in several
            for log in machine
            if len(machine) > 1
        )
        center = statistics.median(logs)
        if not distances:
            return cls(len(logs), center, 0.0, 0.0)
        bad = math.ceil(BAD * len(distances)) if len(distances) > 2 else 0
        kept = distances[: len(distances) - bad]
        mean_square = statistics.fmean(distance**2 for distance in kept)
        spread = math.sqrt(mean_square / _variance_within(len(kept) / len(distances)))
        return cls(len(logs), center, spread, KEPT_DOF * (len(kept) - len(several)))

    def of_these(self, own: Sequence[float]) -> "History":
        """The history of one of the machines: where its own launches lie, and how far launches scatter.

        That is the larger one of two spreads, its own launches' and that within all machines: its few launches may
        have scattered less by chance. They know as much of it as all launches do, unless they scatter surely wider:
        then the others know nothing of this machine.

        Args:
            own: Logarithms of the machine's launches.

        Raises:
            ValueError: Without a launch, or for a logarithm that is not finite.
        """
        alone = History.of(own)
        dof = alone.dof if alone.spread > SURELY_WIDER * self.spread else self.dof
        return History(alone.launches, alone.center, max(alone.spread, self.spread), dof)

    def longer(self, launches: int) -> "History":
        """The same with so many launches, if the spread stays."""
        gained = KEPT_DOF * (1 - BAD) * (launches - self.launches)
        return History(launches, self.center, self.spread, max(0.0, self.dof + gained))


def _variance_within(share: float) -> float:
    """The variance of a standard normal variable where it is among this share of values nearest to 0.

    1 - 2 q phi(q) / share, q the quantile of (1 + share) / 2: Johnson, Kotz and Balakrishnan, Continuous Univariate
    Distributions, volume 1 (1994), section 13.10.1.
    """
    if share == 1:
        return 1.0
    normal = NormalDist()
    q = normal.inv_cdf((1 + share) / 2)
    return 1 - 2 * q * normal.pdf(q) / share


def refuse_without_logarithms(name: str, logs: Sequence[float], fewest: int, cure: str) -> None:
    """Refuses too few launches, or a logarithm that is none.

    Args:
        name: Of the argument.
        logs: A launch's logarithm each.
        fewest: That are needed.
        cure: What to do about it.

    Raises:
        ValueError: For either.
    """
    if len(logs) < fewest:
        raise ValueError(f"{name} holds {len(logs)} launches, expected at least {fewest}: {cure}")
    if not all(map(math.isfinite, logs)):
        odd = next(log for log in logs if not math.isfinite(log))
        raise ValueError(f"{name} holds {odd!r}, expected finite logarithms: check the measurement")
