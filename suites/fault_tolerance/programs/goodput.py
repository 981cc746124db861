"""How often to save: the share of time that is of use, by formula and by simulation.

tau: seconds of training between checkpoints; delta: of a checkpoint; R: of a restart, detection included; M: the mean
time between failures. They come at random with a constant rate, also while the job saves or restarts.

Young: A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974, p. 530.
Daly: A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006, p. 303.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a job on a machine has to reckon with, in seconds."""

    save: float
    """delta."""
    restart: float
    """R."""
    between_failures: float
    """M."""

    def goodput(self, interval: float) -> float:
        """The share of time that is of use: the work divided by the expected time for it.

        Training and its checkpoint, tau + delta, take M e^(R/M) (e^((tau + delta)/M) - 1) on average (Daly).
        """
        m = self.between_failures
        return interval / (m * math.exp(self.restart / m) * math.expm1((interval + self.save) / m))

    def young(self) -> float:
        """The best interval if a checkpoint is short beside M: sqrt(2 delta M)."""
        return math.sqrt(2 * self.save * self.between_failures)

    def daly(self) -> float:
        """The best interval to a higher order of delta/M, by Daly."""
        m = self.between_failures
        if self.save >= 2 * m:
            return m
        ratio = self.save / (2 * m)
        return self.young() * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.save

    def simulated_goodput(self, interval: float, *, segments: int, seed: int) -> float:
        """The share of useful time of a simulated job that saves so many times, with failures drawn from the seed."""
        random = Random(seed)
        clock, failure = 0.0, random.expovariate(1 / self.between_failures)
        for _ in range(segments):
            restarting = 0.0
            while (end := clock + restarting + interval + self.save) > failure:
                clock, restarting = failure, self.restart
                failure += random.expovariate(1 / self.between_failures)
            clock = end
        return segments * interval / clock
