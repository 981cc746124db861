"""What the launches of a baseline tell of a check: where it lies, and how far launches scatter.

The figures are natural logarithms, oriented so that larger is worse.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

# A normal distribution's standard deviation over its median absolute deviation, 1 / z(1/4) = 1.4826.
# Rousseeuw and Croux, Alternatives to the median absolute deviation, JASA 88 (1993), section 1.
MAD_TO_SD = 1 / NormalDist().inv_cdf(0.75)

# A small sample's median absolute deviation is too small on average; by these factors, and by m / (m - 0.8) beyond 9.
# Croux and Rousseeuw, Time-efficient algorithms for two highly robust estimators of scale, Computational Statistics 1
# (1992), section 4. Without them the confirmation alone, of normal figures and 5 launches in each baseline, raises a
# false alarm in 8 of 100 suites of a hundred checks; with them in fewer than 1.
SMALL_SAMPLE = (1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)  # for 2 to 9 launches

# Degrees of freedom per launch after the first. By its variance the square of the median absolute deviation has 0.4;
# 0.6 is what false alarms allow, as MEDIAN_VARIANCE is on the safe side: benchmarks/judge_simulation.py.
MAD_DOF = 0.6
SD_DOF = 1.0


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
    dof_per_launch: float = MAD_DOF
    """Degrees of freedom of the spread, per launch after the first."""

    def __post_init__(self) -> None:
        """Refuses what is no history."""
        if type(self.launches) is not int or self.launches < 1:
            raise ValueError(f"history launches is {self.launches!r}, expected a whole number of at least 1")
        if not math.isfinite(self.center):
            raise ValueError(f"history center is {self.center!r}, expected the logarithm of a figure")
        for name in ("spread", "dof_per_launch"):
            figure = getattr(self, name)
            if not (math.isfinite(figure) and figure >= 0):
                raise ValueError(f"history {name} is {figure!r}, expected a finite number of at least 0")

    @classmethod
    def of(cls, logs: Sequence[float], *, robust: bool = True) -> "History":
        """Sums up launches.

        Args:
            logs: A launch's logarithm each.
            robust: Whether the spread is 1.4826 times the median absolute deviation and its factor for small samples,
                which a bad launch hardly moves, or the sample standard deviation, which makes more of few launches.

        Raises:
            ValueError: Without a launch, or for a logarithm that is not finite.
        """
        refuse_without_logarithms("logs", logs, 1, "record a baseline")
        center = statistics.median(logs)
        if len(logs) == 1:
            spread = 0.0
        elif robust:
            deviations = [abs(log - center) for log in logs]
            spread = _small_sample(len(logs)) * MAD_TO_SD * statistics.median(deviations)
        else:
            spread = statistics.stdev(logs)
        return cls(len(logs), center, spread, MAD_DOF if robust else SD_DOF)

    @classmethod
    def within(cls, machines: Sequence[Sequence[float]]) -> "History":
        """Sums up launches of several machines; the spread is that of one machine's launches.

        MAD_TO_SD times the median of the distances from each machine's own mean, each times sqrt(n / (n - 1)), since
        the mean of n launches was estimated. Where no machine has two launches, all are taken for one machine's.

        Raises:
            ValueError: Without a launch, or for a logarithm that is not finite.
        """
        several = [machine for machine in machines if len(machine) > 1]
        everything = cls.of([log for machine in machines for log in machine])
        if len(machines) == 1 or not several:
            return everything
        distances = [
            abs(log - statistics.fmean(machine)) * math.sqrt(len(machine) / (len(machine) - 1))
            for machine in several
            for log in machine
        ]
        known = len(distances) - len(several)
        spread = MAD_TO_SD * statistics.median(distances)
        return replace(everything, spread=spread, dof_per_launch=MAD_DOF * known / (everything.launches - 1))

    @property
    def dof(self) -> float:
        """Degrees of freedom of the spread."""
        return self.dof_per_launch * (self.launches - 1)


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


def _small_sample(launches: int) -> float:
    return SMALL_SAMPLE[launches - 2] if launches < 10 else launches / (launches - 0.8)


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
