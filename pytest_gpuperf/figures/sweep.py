"""One program over many sizes: its curve of time and bandwidth, and what is odd about it. Knows no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_gpuperf.figures.bandwidth import bus_bandwidth
from pytest_gpuperf.figures.metric import Better, Metric
from pytest_gpuperf.figures.regimes import Regime, find_regimes
from pytest_gpuperf.figures.timing import Timing, mark_host_bound, observe
from pytest_gpuperf.figures.work import Exchange, Work

NEIGHBOURS = "neighbouring sizes"
"""What the evenness of a curve is held against, as the name of its limit."""

DEEP = 0.15  # a bandwidth that is further below what its neighbours promise is a dip


@dataclass(frozen=True, slots=True)
class Dip:
    """A size that is slower than its neighbours let expect."""

    nbytes: int
    bandwidth: float
    """B/s, measured."""
    promised: float
    """B/s: see ``Sweep.promised``."""


@dataclass(frozen=True)
class Sweep:
    """The measured curve of one program."""

    op: str | None
    """The collective, as ``Timing.busbw`` takes it; None: bandwidth is the size over the time."""
    sizes: tuple[int, ...]
    """Bytes, increasing; of a collective, S as nccl-tests counts it."""
    timings: tuple[Timing, ...]
    """The timing of each size."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """Median time of each size."""
        return tuple(timing.median for timing in self.timings)

    @cached_property
    def bandwidths(self) -> tuple[float, ...]:
        """B/s at each size; of a collective, its bus bandwidth."""
        return tuple(self._compute_bandwidth(size, time) for size, time in zip(self.sizes, self.seconds, strict=True))

    @cached_property
    def promised(self) -> tuple[float | None, ...]:
        """B/s at each size that its neighbours promise; None if they promise nothing.

        A size takes no longer than a larger one. Its bandwidth is no lower than a smaller one's, unless all larger
        ones are as slow: then the curve has come down for good, as beyond a cache.
        """
        return tuple(self._predict_promise(index) for index in range(len(self.sizes)))

    @property
    def dips(self) -> tuple[Dip, ...]:
        """Sizes that are more than 15 % below what their neighbours promise, the smallest size first."""
        return tuple(
            Dip(size, bandwidth, promise)
            for size, bandwidth, promise in zip(self.sizes, self.bandwidths, self.promised, strict=True)
            if promise is not None and bandwidth < (1 - DEEP) * promise
        )

    def at_best(self, again: Mapping[int, Timing]) -> Sweep:
        """Return the curve with the faster timing of each size that was timed again."""
        timings = tuple(
            min(timing, again.get(size, timing), key=lambda one: one.median)
            for size, timing in zip(self.sizes, self.timings, strict=True)
        )
        return replace(self, timings=timings)

    @cached_property
    def regimes(self) -> tuple[Regime, ...]:
        """Straight pieces of the curve without its dips; ``beta`` is the size, not the bus's bytes, per second."""
        dips = {dip.nbytes for dip in self.dips}
        kept = [point for point in zip(self.sizes, self.seconds, strict=True) if point[0] not in dips]
        return find_regimes([size for size, _ in kept], [seconds for _, seconds in kept])

    @property
    def half_size(self) -> float:
        """Bytes at which the bandwidth first reaches half of its peak; between two sizes, by the logarithms of both."""
        half = max(self.bandwidths) / 2
        index = next(index for index, bandwidth in enumerate(self.bandwidths) if bandwidth >= half)
        if index == 0:
            return float(self.sizes[0])
        (below, above), (small, large) = self.bandwidths[index - 1 : index + 1], self.sizes[index - 1 : index + 1]
        share = math.log(half / below) / math.log(above / below)
        return math.exp(math.log(small) + share * math.log(large / small))

    @property
    def alpha(self) -> Metric:
        """The latency of the smallest sizes, by the fit of the first regime; unit s, lower is better.

        If the fit finds none, as for sizes whose time is all bandwidth, the smallest size's time.
        """
        fitted = self.regimes[0].alpha if self.regimes else 0.0
        alpha = _make_metric(self.timings[0], fitted or self.seconds[0], "s", "lower")
        if self.op is None:
            return alpha
        return alpha.for_work(Work(self.timings[0].world_size, (Exchange(self.op, self.sizes[0]),)))

    @property
    def peak(self) -> Metric:
        """The bandwidth of the fastest size, with the limit that the links put on a collective; unit B/s."""
        index = max(range(len(self.sizes)), key=self.bandwidths.__getitem__)
        size, timing = self.sizes[index], self.timings[index]
        return timing.rate(size, "B/s") if self.op is None else timing.busbw(self.op, size)

    @property
    def evenness(self) -> Metric:
        """The lowest bandwidth over what its neighbours promise; unit x, higher is better; below 0.85 it is a dip."""
        index, share = min(
            (
                (index, bandwidth / promise)
                for index, (bandwidth, promise) in enumerate(zip(self.bandwidths, self.promised, strict=True))
                if promise is not None
            ),
            key=lambda entry: entry[1],
        )
        return replace(_make_metric(self.timings[index], share, "x", "higher"), limit_name=NEIGHBOURS)

    @property
    def figures(self) -> dict[str, Metric]:
        """What is judged: ``perf.check(**swept.figures)``."""
        return {"alpha": self.alpha, "peak": self.peak, "evenness": self.evenness}

    def _compute_bandwidth(self, nbytes: int, seconds: float) -> float:
        if self.op is None:
            return nbytes / seconds
        return bus_bandwidth(self.op, self.timings[0].world_size, nbytes, seconds)

    def _predict_promise(self, index: int) -> float | None:
        smaller, larger = self.bandwidths[:index], self.bandwidths[index + 1 :]
        if not larger:
            return None
        by_time = self._compute_bandwidth(self.sizes[index], min(self.seconds[index + 1 :]))
        return max(by_time, min(max(smaller), max(larger))) if smaller else by_time


def _make_metric(timing: Timing, value: float, unit: str, better: Better) -> Metric:
    """A metric that was made of this timing and others, with what was observed meanwhile."""
    figure = Metric(value, unit, better, samples=len(timing.samples), clock=timing.time.clock)
    return mark_host_bound(observe(figure, timing.conditions), [timing])
