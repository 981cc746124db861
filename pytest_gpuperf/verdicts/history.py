"""What the record tells about a metric: where it lies, and how far launches and machines scatter.

Metrics are natural logarithms, oriented so that larger is worse.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

FEWEST_KNOWN = 5
"""Launches on the very GPUs of this run with which the record knows these GPUs."""

# The variance of a large normal sample's median over that of its mean. A small sample's ratio is less: 1.35 for 3.
# Kendall and Stuart, The Advanced Theory of Statistics, volume 1, chapter 10.
MEDIAN_VARIANCE = math.pi / 2

# The share of the launches, rounded up, that may be bad. The spread ignores those farthest from the median.
# It keeps the others, because small collectives on 2 x H200 have two or three usual speeds, 2 to 3 % apart.
BAD = 0.1

# Degrees of freedom of the spread per launch that is kept, after the first. The variance of the mean square gives 0.86
# if 4 of 5 launches are kept, 0.91 for 9 of 10, and 0.90 for 18 of 20 (a million normal samples each).
KEPT_DOF = 0.8

# Two rates or times are one metric if their spreads agree this well: a rate is made of a time.
SAME_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class History:
    """One metric's launches in the record, seen from the GPUs of this run.

    Raises:
        ValueError: A field has no meaning.
    """

    launches: int
    """Launches that the centre is made of."""
    center: float
    """Median of these launches' logarithms."""
    spread: float
    """Estimated standard deviation of one launch within a machine; 0 if no machine has two launches."""
    dof: float
    """Degrees of freedom of the spread."""
    between: float
    """Estimated standard deviation between machines; 0 on known GPUs, and if the record has one machine only."""
    machines: int
    """Machines in the record. Launches on unknown GPUs count as one machine."""
    known: bool
    """Whether the record has FEWEST_KNOWN launches on the GPUs of this run; only they make the centre then."""

    def __post_init__(self) -> None:
        """Refuse what is no history."""
        for name in ("launches", "machines"):
            count = getattr(self, name)
            if type(count) is not int or count < 1:
                raise ValueError(f"history {name} is {count!r}, expected a whole number of at least 1")
        if not math.isfinite(self.center):
            raise ValueError(f"history center is {self.center!r}, expected the logarithm of a metric")
        for name in ("spread", "dof", "between"):
            figure = getattr(self, name)
            if not (math.isfinite(figure) and figure >= 0):
                raise ValueError(f"history {name} is {figure!r}, expected a finite number of at least 0")

    @classmethod
    def of(cls, machines: Mapping[str, Sequence[float]], here: str) -> "History":
        """Sum up the launches of a record.

        Args:
            machines: The logarithms of the record's launches by the identity of their GPUs; "" if it is unknown.
            here: The identity of the GPUs of this run; "" if it is unknown.

        Raises:
            ValueError: There is no launch, or a logarithm is not finite.
        """
        found = [logs for logs in machines.values() if logs]
        everything = [log for logs in found for log in logs]
        refuse_without_logarithms("machines", everything, 1, "record a baseline")
        own = machines.get(here, ()) if here else ()
        known = len(own) >= FEWEST_KNOWN
        counted = own if known else everything
        spread, dof = _spread_within(found)
        if known:  # machines differ in how far launches scatter, too
            spread = max(spread, compute_spread([own])[0])
        return cls(
            launches=len(counted),
            center=statistics.median(counted),
            spread=spread,
            dof=dof,
            between=0.0 if known else _spread_between(found, spread),
            machines=len(found),
            known=known,
        )


def drop_duplicates(histories: Sequence[History]) -> list[History]:
    """Return the histories of one test without those that are of the same metric.

    A rate that is made of a time scatters exactly as this time does.
    """
    found: list[History] = []
    for history in histories:
        if not any(
            history.launches == other.launches
            and math.isclose(history.spread, other.spread, rel_tol=SAME_SPREAD, abs_tol=1e-5)
            for other in found
        ):
            found.append(history)
    return found


def compute_spread(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the standard deviation within groups, robust against bad values, and its degrees of freedom.

    It is the root mean square of the distances from each group's median, each times sqrt(n / (n - 1)), because the
    median of n values is estimated. The largest tenth of the distances is ignored, and a factor mends this for normal
    values. The result is up to 6 % too small for groups of 3, and up to 8 % too large for groups of 5.

    Args:
        groups: Values that share a centre in each group, and a spread in all of them.

    Returns:
        The spread and its degrees of freedom; both are 0 if no group has two values.
    """
    several = [group for group in groups if len(group) > 1]
    distances = sorted(
        abs(value - statistics.median(group)) * math.sqrt(len(group) / (len(group) - 1))
        for group in several
        for value in group
    )
    if not distances:
        return 0.0, 0.0
    bad = math.ceil(BAD * len(distances)) if len(distances) > 2 else 0
    kept = distances[: len(distances) - bad]
    mean_square = statistics.fmean(distance**2 for distance in kept)
    spread = math.sqrt(mean_square / _variance_within(len(kept) / len(distances)))
    return spread, KEPT_DOF * max(0, len(kept) - len(several))


def refuse_without_logarithms(name: str, logs: Sequence[float], fewest: int, cure: str) -> None:
    """Refuse too few launches, or a logarithm that is not finite.

    Args:
        name: The argument, for the message.
        logs: One logarithm of each launch.
        fewest: How many launches are needed.
        cure: What to do about too few launches.

    Raises:
        ValueError: Either is the case.
    """
    if len(logs) < fewest:
        raise ValueError(f"{name} holds {len(logs)} launches, expected at least {fewest}: {cure}")
    if not all(map(math.isfinite, logs)):
        odd = next(log for log in logs if not math.isfinite(log))
        raise ValueError(f"{name} holds {odd!r}, expected finite logarithms: check the measurement")


def _spread_within(machines: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the spread within machines; if no machine has two launches, all launches count as one machine's."""
    if all(len(logs) < 2 for logs in machines):
        return compute_spread([[log for logs in machines for log in logs]])
    return compute_spread(machines)


def _spread_between(machines: Sequence[Sequence[float]], spread: float) -> float:
    """Return the standard deviation of the machines' centres that the spread of launches does not explain.

    Searle, Casella and McCulloch, Variance Components (1992), section 3.6, with medians in place of means.
    """
    if len(machines) < 2:
        return 0.0
    centers = statistics.variance(map(statistics.median, machines))
    by_launches = statistics.fmean(spread**2 * median_variance(len(logs)) for logs in machines)
    return math.sqrt(max(0.0, centers - by_launches))


def median_variance(n: int) -> float:
    """Return the variance of the median of n normal values, in units of the variance of one.

    The median of 1 or 2 values is their mean; for more it is the value of large samples.
    """
    return 1 / n if n < 3 else MEDIAN_VARIANCE / n


def _variance_within(share: float) -> float:
    """Return the variance of a standard normal variable within the share of values that is nearest to 0.

    1 - 2 q phi(q) / share, q the quantile of (1 + share) / 2: Johnson, Kotz and Balakrishnan, Continuous Univariate
    Distributions, volume 1 (1994), section 13.10.1.
    """
    if share == 1:
        return 1.0
    normal = NormalDist()
    q = normal.inv_cdf((1 + share) / 2)
    return 1 - 2 * q * normal.pdf(q) / share
