"""What a measurement is once it has left the ranks. Knows no torch; used by the controller and the ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.figures.bandwidth import BUS_FACTORS, algorithm_bandwidth, bus_bandwidth
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.figures.precision import relative_halfwidth
from pytest_gpuperf.figures.student import upper_quantile
from pytest_gpuperf.hardware.fitness import FIT, Conditions
from pytest_gpuperf.hardware.limits import busbw_limit

ONE_SIDED = 0.95  # of a speedup's bounds, each
# The same where a speedup is asked for, and groups are added until the bounds tell: they are looked at up to six times,
# after 3 to 8 groups, and each look is a chance to err. At 0.95 for each of them 13 of 100 speedups that are just what
# is asked for would be told to be below it; at this level 4.8 are (simulated, 400,000 races).
ONE_SIDED_OF_A_LOOK = 0.985


@dataclass(frozen=True, slots=True)
class RankSamples:
    """One rank's samples of a step."""

    seconds: tuple[float, ...]
    """Time of one step, for each sample."""
    clock: str
    cuda_graph: bool
    steps_per_sample: int
    host_bound: bool = False
    """Whether more than a quarter of the samples are as long as the host took to launch them."""


@dataclass(frozen=True, slots=True)
class Link:
    """The physical link that a measurement is held against."""

    line_rate: float | None
    """Bytes per second and direction of one rank; None if unknown, as on CPUs."""
    name: str
    multicast: bool
    """Whether the switch may replicate and reduce (NVLink SHARP), which saves wire bytes."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The measured time of one step; each sample is the slowest rank's."""

    ranks: tuple[RankSamples, ...]
    """In rank order."""
    link: Link
    conditions: Conditions = FIT
    """What was observed of the GPUs meanwhile."""

    @property
    def samples(self) -> tuple[float, ...]:
        """Seconds; the maximum over the ranks of each sample."""
        return tuple(max(step) for step in zip(*(rank.seconds for rank in self.ranks), strict=True))

    @property
    def world_size(self) -> int:
        """Number of ranks that took part."""
        return len(self.ranks)

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Seconds, first and third."""
        return quartiles(self.samples)

    @property
    def precision(self) -> float:
        """Half the width of the median's 95 % interval, relative to it; infinite where samples are too few."""
        return relative_halfwidth(self.samples)

    @property
    def imbalance(self) -> float:
        """By how much the slowest rank's median exceeds the fastest one's, as a fraction."""
        medians = [statistics.median(rank.seconds) for rank in self.ranks]
        return max(medians) / min(medians) - 1

    @property
    def host_bound(self) -> bool:
        """Whether many of a rank's samples are as long as its host took to launch them.

        A smaller step, or one captured in a CUDA graph (``configured(cuda_graph=True)``), is the device's.
        """
        return any(rank.host_bound for rank in self.ranks)

    @property
    def time(self) -> Metric:
        """The median time, for ``perf.check(time=...)``; unit s, lower is better."""
        q1, q3 = self.quartiles
        return self._observed(Metric(self.median, "s", "lower", q1, q3, len(self.samples), clock=self._clock))

    def algbw(self, op: str, nbytes: int) -> Metric:
        """Algorithm bandwidth of a collective over ``nbytes`` (see ``bandwidth.algorithm_bandwidth``)."""
        if op not in BUS_FACTORS:
            raise ValueError(f"no bandwidth is defined for {op!r}; known are {', '.join(sorted(BUS_FACTORS))}")
        return self.rate(algorithm_bandwidth(nbytes, 1.0), "B/s")

    def busbw(self, op: str, nbytes: int) -> Metric:
        """Bus bandwidth of a collective over ``nbytes``, with the limit that the links put on it.

        Args:
            op: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter or
                send_recv.
            nbytes: S as nccl-tests counts it: see ``bandwidth.algorithm_bandwidth``.

        Raises:
            ValueError: another op, or a world of one rank.
        """
        n = self.world_size
        line_rate = self.link.line_rate
        limit = None if line_rate is None else busbw_limit(op, n, line_rate, multicast=self.link.multicast)
        per_second = bus_bandwidth(op, n, nbytes, 1.0)  # it is inverse to the time
        return self.rate(per_second, "B/s", limit=limit, limit_name=self.link.name)

    def rate(self, amount: float, unit: str, *, limit: float | None = None, limit_name: str = "") -> Metric:
        """``amount`` per step over its time; for example FLOPs with unit ``FLOP/s``; higher is better."""
        q1, q3 = self.quartiles
        return self._observed(
            Metric(
                amount / self.median,
                unit,
                "higher",
                amount / q3,
                amount / q1,
                len(self.samples),
                limit,
                self._clock,
                limit_name,
            )
        )

    def _observed(self, metric: Metric) -> Metric:
        return replace(observed(metric, self.conditions), host_bound=self.host_bound)

    @property
    def _clock(self) -> str:
        return self.ranks[0].clock + ("+graph" if self.ranks[0].cuda_graph else "")


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
        return _joined([pair.baseline for pair in self.groups])

    @property
    def optimized(self) -> Timing:
        """The optimized arm's samples of all groups."""
        return _joined([pair.optimized for pair in self.groups])

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % on each side of the speedup, by Student's t over the groups; None with one group.

        Wider where a speedup is asked for: so sure are then all looks at it together.
        """
        gains = [pair.gain for pair in self.groups]
        if len(gains) < 2:
            return None
        low, high = bounds(gains, ONE_SIDED if self.at_least is None else ONE_SIDED_OF_A_LOOK)
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
        )
        host_bound = self.baseline.host_bound or self.optimized.host_bound
        return replace(observed(metric, self.baseline.conditions), host_bound=host_bound)


def bounds(gains: Sequence[float], one_sided: float) -> tuple[float, float]:
    """Between what the mean of gains like these is, each side with this confidence, by Student's t."""
    reach = upper_quantile(1 - one_sided, len(gains) - 1) * statistics.stdev(gains) / math.sqrt(len(gains))
    middle = statistics.fmean(gains)
    return middle - reach, middle + reach


def observed(metric: Metric, conditions: Conditions) -> Metric:
    """The figure with what was observed of the GPUs while it was measured."""
    return replace(
        metric,
        invalid="; ".join(conditions.tripped),
        power_capped=conditions.power_capped,
        sm_clock=conditions.sm_clock,
    )


def block_ratios(baseline: Sequence[float], optimized: Sequence[float]) -> list[float]:
    """Baseline over optimized within each block of ABBA, whose two samples of an arm are neighbours in its list."""
    return [sum(baseline[i : i + 2]) / sum(optimized[i : i + 2]) for i in range(0, len(baseline) - 1, 2)]


def _joined(timings: Sequence[Timing]) -> Timing:
    first = timings[0]
    ranks = zip(*(timing.ranks for timing in timings), strict=True)
    clocks = [timing.conditions.sm_clock for timing in timings if timing.conditions.sm_clock is not None]
    return replace(
        first,
        conditions=Conditions(
            tuple(dict.fromkeys(problem for timing in timings for problem in timing.conditions.tripped)),
            any(timing.conditions.power_capped for timing in timings),
            statistics.median(clocks) if clocks else None,
        ),
        ranks=tuple(
            replace(
                of_rank[0],
                seconds=tuple(value for samples in of_rank for value in samples.seconds),
                host_bound=any(samples.host_bound for samples in of_rank),
            )
            for of_rank in ranks
        ),
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, interpolated; of a single value, that value twice."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third
