"""Random delays of a rank, which provoke races between ranks. Runs in rank processes."""

from __future__ import annotations

import math
import random

from pytest_gpuperf.ranks.messages import Run

SHORTEST, LONGEST = 0.0001, 0.05
"""Seconds of a delay. Its logarithm is spread evenly, since nobody knows how wide a race's window is."""


class Delays:
    """The delays of one rank in one run: every other time none, on average."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    @classmethod
    def of(cls, request: Run, rank: int) -> Delays | None:
        """The delays that a run asks for: the same ones each time that its test runs with the same seed.

        Args:
            request: the run.
            rank: whose delays.
        """
        return None if request.delays is None else cls(f"{request.delays} {request.seed} {rank}")

    def next(self) -> float:
        """Seconds of the next delay."""
        if self._random.random() < 0.5:
            return 0.0
        return math.exp(self._random.uniform(math.log(SHORTEST), math.log(LONGEST)))
