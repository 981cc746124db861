"""What a measurement is once it has left the ranks. Knows no torch; used by the controller and the ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.figures.bandwidth import BUS_FACTORS, algorithm_bandwidth, bus_bandwidth, compute_busbw_limit
from pytest_gpuperf.figures.conditions import FIT, Conditions
from pytest_gpuperf.figures.metric import Metric, trace_samples
from pytest_gpuperf.figures.precision import compute_halfwidth
from pytest_gpuperf.figures.work import Exchange, Work


@dataclass(frozen=True, slots=True)
class RankSamples:
    """One rank's samples of a step."""

    seconds: tuple[float, ...]
    """Time of one step, for each sample."""
    clock: str
    cuda_graph: bool
    steps_per_sample: int
    host_bound: bool = False
    """Whether more than half of the samples are as long as the host took to launch them."""
    waits: bool = False
    """Whether the host waits for the device within the step."""


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
        return compute_halfwidth(self.samples)

    @property
    def medians(self) -> tuple[float, ...]:
        """Seconds; each rank's own median, in rank order."""
        return tuple(statistics.median(rank.seconds) for rank in self.ranks)

    @property
    def imbalance(self) -> float:
        """By how much the slowest rank's median exceeds the fastest one's, as a fraction."""
        return max(self.medians) / min(self.medians) - 1

    @property
    def slowest_rank(self) -> int:
        """The rank with the longest median. Of a step that waits for others, that says little: time it without."""
        return self.medians.index(max(self.medians))

    @property
    def host_bound(self) -> bool:
        """Whether many of a rank's samples are as long as its host took to launch them.

        A smaller step, or one captured in a CUDA graph (``configured(cuda_graph=True)``), is the device's.
        """
        return any(rank.host_bound for rank in self.ranks)

    @property
    def waits(self) -> bool:
        """Whether a rank's host waits for its device within the step, as ``.item()`` does.

        The host then cannot launch ahead, so the device has nothing to do meanwhile.
        """
        return any(rank.waits for rank in self.ranks)

    @property
    def time(self) -> Metric:
        """The median time, for ``perf.check(time=...)``; unit s, lower is better."""
        q1, q3 = self.quartiles
        samples = self.samples
        return self._observe(
            Metric(
                self.median,
                "s",
                "lower",
                q1,
                q3,
                len(samples),
                clock=self._clock,
                trace=trace_samples(samples),
                by_rank=self.medians,
            )
        )

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
        limit = None if line_rate is None else compute_busbw_limit(op, n, line_rate, multicast=self.link.multicast)
        per_second = bus_bandwidth(op, n, nbytes, 1.0)  # it is inverse to the time
        work = Work(n, (Exchange(op, nbytes),), amount=per_second)
        return self.rate(per_second, "B/s", limit=limit, limit_name=self.link.name).for_work(work)

    def rate(
        self, amount: float, unit: str, *, limit: float | None = None, limit_name: str = "", plain: bool = False
    ) -> Metric:
        """``amount`` per step over its time; for example FLOPs with unit ``FLOP/s``; higher is better.

        Args:
            amount: of a step, in what the unit counts.
            unit: of the rate.
            limit: the best that physics allows.
            limit_name: what sets it.
            plain: whether the step does nothing else; a model then expects most of the limit if nothing is recorded.
        """
        q1, q3 = self.quartiles
        samples = self.samples
        return self._observe(
            Metric(
                amount / self.median,
                unit,
                "higher",
                amount / q3,
                amount / q1,
                len(samples),
                limit,
                self._clock,
                limit_name,
                plain=plain,
                trace=trace_samples([amount / seconds for seconds in samples]),
                by_rank=tuple(amount / seconds for seconds in self.medians),
            )
        )

    def _observe(self, metric: Metric) -> Metric:
        return mark_host_bound(observe(metric, self.conditions), [self])

    @property
    def _clock(self) -> str:
        return self.ranks[0].clock + ("+graph" if self.ranks[0].cuda_graph else "")


def observe(metric: Metric, conditions: Conditions) -> Metric:
    """The metric with what was observed of the GPUs while it was measured."""
    return replace(
        metric,
        invalid=conditions.tripped,
        power_capped=conditions.power_capped,
        sm_clock=conditions.sm_clock,
        watts=conditions.watts,
        kelvin=conditions.kelvin,
    )


def mark_host_bound(metric: Metric, timings: Iterable[Timing]) -> Metric:
    """The metric that these timings make, and whether one of them is bound by the host, and waits for its device."""
    made = tuple(timings)
    bound = [one for one in made if one.host_bound]
    return replace(metric, host_bound=bool(bound), waits=any(one.waits for one in bound))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, interpolated; of a single value, that value twice."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third
