"""How long a kernel that spins must hold the device while the host enqueues what is to be timed. Knows no torch."""

from __future__ import annotations

from collections import deque

MARGIN = 1.25  # the host may be slower this time than it was the last times
REMEMBERED = 8  # samples; the slowest but one counts: a host's time comes and goes, and now and then it is held up
MIN_SECONDS = 200e-6
MAX_SECONDS = 50e-3  # a step that takes the host longer than this waits for the device by itself

# Until a gate has been timed: no GPU that runs torch 2.10 exceeds 3 GHz, so that this errs towards a longer gate.
CYCLES_PER_SECOND = 3e9


class Gate:
    """Learns from each sample how long the host takes for a step, and how fast the device counts its clock cycles."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=REMEMBERED)
        self._step_seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._steps = 0
        self._cycles_per_second = 0.0

    def seconds(self, steps: int) -> float:
        """How long the next gate is to be."""
        on_host = _longest(self._before) + _longest(self._step_seconds) * steps
        return min(MAX_SECONDS, max(MIN_SECONDS, MARGIN * on_host))

    def cycles(self, steps: int) -> int:
        """The same in clock cycles, by which such a kernel counts."""
        return int(self.seconds(steps) * (self._cycles_per_second or CYCLES_PER_SECOND))

    def enqueued(self, steps: int, *, before: float, seconds: float) -> None:
        """Takes note of how long the host took to enqueue a sample.

        A single step is called with colder caches than each of a loop, so it is forgotten once there are several.

        Args:
            steps: how many the sample has.
            before: seconds for what is enqueued ahead of them, however many they are.
            seconds: for the steps.
        """
        if steps != self._steps:
            self._steps = steps
            self._step_seconds.clear()
        self._before.append(before)
        self._step_seconds.append(seconds / steps)

    def lasted(self, cycles: int, seconds: float) -> None:
        """Takes note of how long so many cycles took.

        The fastest counts: clocks rise and fall with the load, and a gate that opens too early is worse than one that
        opens too late.
        """
        self._cycles_per_second = max(self._cycles_per_second, cycles / seconds)


def _longest(seconds: deque[float]) -> float:
    """The longest but one; of two and fewer the longest, of none 0."""
    ranked = sorted(seconds, reverse=True)
    return ranked[1] if len(ranked) > 2 else max(ranked, default=0.0)
