"""How far a run is with its faults, as lines that appear now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from pytest_gpuperf.report.units import format_count

_EVERY = 10.0  # seconds between two lines, at least
_LINES = 10  # after a while, a line appears when a tenth of the time has passed since the one before


class Trying:
    """Prints how many faults have been tried, and how long the others will take."""

    def __init__(
        self, faults: int, budget: float, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """None has been tried.

        Args:
            faults: how many there are.
            budget: seconds that they may take.
            tell: prints a line.
            clock: seconds.
        """
        self._faults = faults
        self._budget = budget
        self._tell = tell
        self._clock = clock
        self._began = self._last = clock()
        self._tried = 0
        self._unnoticed = 0

    def note_tried(self, *, unnoticed: bool) -> None:
        """Takes note of one more fault."""
        self._tried += 1
        self._unnoticed += unnoticed
        now = self._clock()
        if now - self._last < max(_EVERY, (now - self._began) / _LINES) or self._tried == self._faults:
            return
        self._last = now
        took = now - self._began
        left = min(took / self._tried * (self._faults - self._tried), max(0.0, self._budget - took))
        self._tell(
            f"--mutate: {self._tried} of {format_count(self._faults, 'fault')} tried, {self._unnoticed} unnoticed, "
            f"{math.ceil(left)} s left"
        )
