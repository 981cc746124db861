"""What steps took from counters, once it has left the ranks. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.figures.bandwidth import bus_bandwidth
from pytest_gpuperf.figures.conditions import FIT, Conditions
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.figures.timing import observe

CLOCK = "counter"
"""What told the metrics."""


@dataclass(frozen=True, slots=True)
class RankReading:
    """One rank's counters over all its steps. None: its GPU, or a CPU, does not count it."""

    steps: int
    seconds: float
    """Wall time of the steps and a barrier."""
    joules: float | None
    """What the whole GPU took meanwhile, its idle power included."""
    sent: float | None
    """Bytes of payload over its NVLinks."""
    received: float | None
    peak_bytes: int | None
    """The most that torch's allocator held at one time."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What one step takes, as the mean over many of them. A value is None where a rank could not tell it."""

    ranks: tuple[RankReading, ...]
    """In rank order."""
    conditions: Conditions = FIT
    """What was observed of the ranks' GPUs meanwhile."""

    @property
    def world_size(self) -> int:
        """Number of ranks that took part."""
        return len(self.ranks)

    @property
    def steps(self) -> int:
        """How many each rank took."""
        return self.ranks[0].steps

    @property
    def seconds(self) -> float:
        """Wall time of one step, of the slowest rank; with what the host added, unlike ``Timing``'s."""
        return max(rank.seconds for rank in self.ranks) / self.steps

    @property
    def energy(self) -> Metric | None:
        """Energy of one step on all GPUs together, idle power included; unit J, lower is better."""
        joules = _list_if_all_told([rank.joules for rank in self.ranks])
        return None if joules is None else self._make_metric(sum(joules) / self.steps, "J")

    @property
    def moved(self) -> Metric | None:
        """Payload of one step over one GPU's NVLinks, in the busier direction of the busiest GPU; unit B."""
        ways = _list_if_all_told([way for rank in self.ranks for way in (rank.sent, rank.received)])
        return None if ways is None else self._make_metric(max(ways) / self.steps, "B")

    @property
    def peak_memory(self) -> Metric | None:
        """The most that torch's allocator held on a rank, inputs included; unit B, lower is better.

        What NCCL and CUDA hold for themselves is not the allocator's.
        """
        peaks = _list_if_all_told([rank.peak_bytes for rank in self.ranks])
        return None if peaks is None else self._make_metric(max(peaks), "B")

    def traffic(self, op: str, nbytes: int) -> Metric | None:
        """``moved`` over the least that a collective must move through one GPU's links; unit x, lower is better.

        The least is nbytes times the factor from algbw to busbw (nccl-tests, doc/PERFORMANCE.md): 2(n-1)/n for
        all_reduce, for example. Where the switch adds up (NVLink multicast), all_reduce needs less than that.

        Args:
            op: as for ``Timing.busbw``.
            nbytes: S as nccl-tests counts it: see ``bandwidth.algorithm_bandwidth``.

        Raises:
            ValueError: another op, or a world of one rank.
        """
        least = bus_bandwidth(op, self.world_size, nbytes, 1.0)
        moved = self.moved
        return None if moved is None else self._make_metric(moved.value / least, "x")

    def _make_metric(self, value: float, unit: str) -> Metric | None:
        if value <= 0:  # nothing was used that is counted: no value that a ratio could be made of
            return None
        return observe(Metric(value, unit, "lower", samples=self.steps, clock=CLOCK), self.conditions)


def _list_if_all_told(values: Sequence[float | None]) -> list[float] | None:
    told = [value for value in values if value is not None]
    return told if len(told) == len(values) else None
