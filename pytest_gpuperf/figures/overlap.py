"""Steps that compute and communicate at once, beside either alone. Knows no torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.figures.metric import Better, Metric
from pytest_gpuperf.figures.timing import Timing, mark_host_bound, observe, quartiles

LEAST_SHARE = 1e-3  # of a whole; a smaller one cannot be told from the noise of the times


@dataclass(frozen=True, slots=True)
class Overlap:
    """Three arms of one process group, whose samples were taken in turn."""

    together: Timing
    """The step that does both at once."""
    compute: Timing
    communication: Timing

    @property
    def exposed(self) -> Metric:
        """The share of the communication that the step waits for; unit fraction, lower is better.

        The median over blocks of (together - compute) / communication: 0 all hidden, 1 none, above 1 worse than one
        after the other. Where nothing is exposed, noise makes the difference negative as often as not, and such a
        share is no metric to be compared with another; 0.001 stands for all of them.
        """
        return self._make_fraction([(both - alone) / wait for both, alone, wait in self._list_blocks()], "lower")

    @property
    def efficiency(self) -> Metric:
        """The share of the communication that is hidden, 1 - exposed; unit fraction, higher is better.

        Not below 0.001, which stands for a step that takes as long as one after the other, or longer.
        """
        return self._make_fraction([1 - (both - alone) / wait for both, alone, wait in self._list_blocks()], "higher")

    @property
    def ideal(self) -> Metric:
        """The time of the longer one of the two over that of the step; unit fraction, higher is better.

        At most 1 but for noise: nothing ends before its longer part has.
        """
        return self._make_fraction([max(alone, wait) / both for both, alone, wait in self._list_blocks()], "higher")

    def _list_blocks(self) -> list[tuple[float, float, float]]:
        arms = (self.together.samples, self.compute.samples, self.communication.samples)
        return list(zip(*map(_average_blocks, arms), strict=True))

    def _make_fraction(self, shares: Sequence[float], better: Better) -> Metric:
        q1, q3 = quartiles(shares)
        value, q1, q3 = (max(LEAST_SHARE, share) for share in (statistics.median(shares), q1, q3))
        clock = self.together.time.clock
        metric = Metric(value, "fraction", better, q1, q3, len(shares), clock=clock)
        arms = (self.together, self.compute, self.communication)
        return mark_host_bound(observe(metric, self.together.conditions), arms)


def _average_blocks(samples: Sequence[float]) -> list[float]:
    """The mean of an arm's two samples in each block, which are neighbours in its list."""
    return [sum(samples[i : i + 2]) / 2 for i in range(0, len(samples) - 1, 2)]
