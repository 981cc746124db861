"""How long a kernel that spins must hold the device while the host enqueues what is to be timed. Knows no torch."""

from __future__ import annotations

from collections import deque

MARGIN = 1.25  # the host may be slower this time than it was the last times
REMEMBERED = 8  # samples; the slowest but one counts: a host's time comes and goes, and now and then it is held up
MIN_SECONDS = 200e-6
MAX_SECONDS = 50e-3  # longer ones would take more time than what is timed
TOLD = 3  # gates of different lengths tell whether a step waits for the device; a longer one only holds up such a step
LOOK_EVERY = 4  # samples of a step that waits: one in so many looks whether it still does. DDP's first ten steps wait
# A look in vain costs three samples more. Of a step of DDP's the host took 2.8 ms, and 5.9 ms two looks later.
LOOK_MARGIN = 3.0
ALIKE = 0.5  # of the difference between gates: 1 if the host does not wait; if it waits, what its own time varies by

# Until a gate has been timed: no GPU that runs torch 2.10 exceeds 3 GHz, so that this errs towards a longer gate.
CYCLES_PER_SECOND = 3e9


class Gate:
    """Learns from each sample how long the host takes for a step, and how fast the device counts its clock cycles."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=REMEMBERED)
        self._step_seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._held: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        """How long a gate lasted, and how long the host took until all was enqueued."""
        self._steps = 0
        self._samples = 0
        self.waits = False
        """Whether the step waits for the device, and so for the gate. It may wait at first, and no more later."""
        self._cycles_per_second = 0.0

    def seconds(self, steps: int) -> float:
        """How long the next gate is to be."""
        if self.waits and self._samples % LOOK_EVERY:
            return MIN_SECONDS
        # What was taken off for a gate may have been the host's own time.
        on_host = _find_longest(self._before) + _find_longest(self._step_seconds) * steps + self.waits * MIN_SECONDS
        margin = LOOK_MARGIN if self.waits else MARGIN
        return min(MAX_SECONDS, max(MIN_SECONDS, margin * on_host))

    def compute_cycles(self, steps: int) -> int:
        """Return the length of the next gate in clock cycles, which its kernel counts."""
        return int(self.seconds(steps) * (self._cycles_per_second or CYCLES_PER_SECOND))

    def note_sample(self, steps: int, *, cycles: int, held: float, before: float, seconds: float) -> None:
        """Takes note of a sample.

        A single step is called with colder caches than each of a loop, so it is forgotten once there are several. The
        fastest cycles count: clocks rise and fall with the load, and a gate that opens too early is worse than one that
        opens too late.

        Args:
            steps: how many the sample has.
            cycles: of its gate.
            held: seconds that these took.
            before: seconds the host took to enqueue what comes ahead of the steps, however many they are.
            seconds: the same for the steps.
        """
        if steps != self._steps:
            self._steps = steps
            self._step_seconds.clear()
            self._held.clear()
        self._before.append(before)
        self._held.append((held, before + seconds))
        self._samples += 1
        ahead = before + seconds < held  # all was enqueued while the gate was shut
        self.waits = not ahead and (self.waits or self._is_always_outlasted())
        own = max(0.0, seconds - held) if self.waits else seconds
        self._step_seconds.append(own / steps)
        self._cycles_per_second = max(self._cycles_per_second, cycles / held)

    def _is_always_outlasted(self) -> bool:
        """Whether the host is done the same time after each gate, however long that was."""
        held = [gate for gate, _ in self._held]
        after = [launched - gate for gate, launched in self._held]
        differ = max(held) - min(held)
        known = len(held) >= TOLD and differ > MIN_SECONDS
        return known and min(after) >= 0 and max(after) - min(after) <= ALIKE * differ


def _find_longest(seconds: deque[float]) -> float:
    """The longest but one; of two and fewer the longest, of none 0."""
    ranked = sorted(seconds, reverse=True)
    return ranked[1] if len(ranked) > 2 else max(ranked, default=0.0)
