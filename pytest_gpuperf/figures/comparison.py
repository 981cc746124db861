"""Two arms that did the same work, raced in turn: how much faster one is. Knows no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.figures.conditions import Conditions
from pytest_gpuperf.figures.metric import Metric, trace_samples
from pytest_gpuperf.figures.student import upper_quantile
from pytest_gpuperf.figures.timing import Timing, mark_host_bound, observe, quartiles

ONE_SIDED = 0.95  # of a speedup's bounds, each
# The same where a speedup is asked for, and groups are added until the bounds tell: they are looked at up to six times,
# after 3 to 8 groups, and each look is a chance to err. At 0.95 for each of them 13 of 100 speedups that are just what
# is asked for would be told to be below it; at this level 4.8 are (simulated, 400,000 races).
ONE_SIDED_OF_A_LOOK = 0.985
# How far one group may be from what all groups would show, where a speedup is asked for. Recorded launches of one test
# were 1.7 % apart at most, as a standard deviation, and those of saves to a disk 20 %.
FACTOR_OF_ONE_GROUP = 2.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two arms that did the same work in one process group, sample beside sample."""

    baseline: Timing
    optimized: Timing

    @property
    def gain(self) -> float:
        """The mean over the blocks of ABBA of ln(baseline / optimized)."""
        return statistics.fmean(map(math.log, block_ratios(self.baseline.samples, self.optimized.samples)))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms that did the same work, in several process groups one after the other.

    What a group's communicators cost or gain weighs on both arms alike and leaves the ratio; what they do to
    one arm more than to the other differs from group to group. So the groups are the sample of the ratio.
    """

    groups: tuple[Pair, ...]
    at_least: float | None = None
    """The speedup that is asked for."""

    @property
    def baseline(self) -> Timing:
        """The baseline arm's samples of all groups."""
        return _join([pair.baseline for pair in self.groups])

    @property
    def optimized(self) -> Timing:
        """The optimized arm's samples of all groups."""
        return _join([pair.optimized for pair in self.groups])

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % on each side of the speedup, by Student's t over the groups; None with one group.

        Wider where a speedup is asked for: so sure are then all looks at it together. One group then has an interval of
        a factor of 2 on each side.
        """
        gains = [pair.gain for pair in self.groups]
        if len(gains) < 2:
            middle = math.exp(gains[0])
            return None if self.at_least is None else (middle / FACTOR_OF_ONE_GROUP, middle * FACTOR_OF_ONE_GROUP)
        low, high = compute_bounds(gains, ONE_SIDED if self.at_least is None else ONE_SIDED_OF_A_LOOK)
        return math.exp(low), math.exp(high)

    @property
    def decided(self) -> bool:
        """Whether the speedup is above or below what is asked for, beyond doubt."""
        if self.at_least is None or self.interval is None:
            return True
        low, high = self.interval
        return low >= self.at_least or high < self.at_least

    @property
    def speedup(self) -> Metric:
        """Time of the baseline over that of the optimized arm; unit x, above 1 is a win.

        exp of the mean over the groups of their mean ln(baseline / optimized) over blocks of ABBA. The quartiles
        are those of the ratios within all blocks.
        """
        ratios = [
            ratio for pair in self.groups for ratio in block_ratios(pair.baseline.samples, pair.optimized.samples)
        ]
        q1, q3 = quartiles(ratios)
        metric = Metric(
            math.exp(statistics.fmean(pair.gain for pair in self.groups)),
            "x",
            "higher",
            q1,
            q3,
            len(ratios),
            clock=self.baseline.time.clock,
            interval=self.interval,
            at_least=self.at_least,
            trace=trace_samples(ratios),
        )
        return mark_host_bound(observe(metric, self.baseline.conditions), [self.baseline, self.optimized])


def compute_bounds(gains: Sequence[float], one_sided: float) -> tuple[float, float]:
    """Between what the mean of gains like these is, each side with this confidence, by Student's t."""
    reach = upper_quantile(1 - one_sided, len(gains) - 1) * statistics.stdev(gains) / math.sqrt(len(gains))
    middle = statistics.fmean(gains)
    return middle - reach, middle + reach


def block_ratios(baseline: Sequence[float], optimized: Sequence[float]) -> list[float]:
    """Baseline over optimized within each block of ABBA, whose two samples of an arm are neighbours in its list."""
    return [sum(baseline[i : i + 2]) / sum(optimized[i : i + 2]) for i in range(0, len(baseline) - 1, 2)]


def _compute_middle(values: Iterable[float | None]) -> float | None:
    """The median of those that are known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _join(timings: Sequence[Timing]) -> Timing:
    first = timings[0]
    ranks = zip(*(timing.ranks for timing in timings), strict=True)
    conditions = [timing.conditions for timing in timings]
    return replace(
        first,
        conditions=Conditions(
            tuple(dict.fromkeys(problem for one in conditions for problem in one.tripped)),
            any(one.power_capped for one in conditions),
            _compute_middle(one.sm_clock for one in conditions),
            _compute_middle(one.watts for one in conditions),
            _compute_middle(one.kelvin for one in conditions),
        ),
        ranks=tuple(
            replace(
                of_rank[0],
                seconds=tuple(value for samples in of_rank for value in samples.seconds),
                host_bound=any(samples.host_bound for samples in of_rank),
                waits=any(samples.waits for samples in of_rank),
            )
            for of_rank in ranks
        ),
    )
