"""Whether the metrics of a launch moved all alike, which is the environment's doing, or that of a change to all."""

import math
import statistics
from collections.abc import Mapping, Sequence

# A loss that most metrics of a run share is no single program's.
SHIFT = math.log(1.015)

# The median of n metrics' losses has the standard error 1.25 sigma sqrt(1 + pi/(2m)) / sqrt(n): 0.43 % for sigma = 1 %,
# m = 10 and n = 10, so that SHIFT is 3.5 standard errors away. With fewer metrics chance alone moves the median that
# far, and two or three real regressions are most of the suite.
SHIFT_FIGURES = 10


def compute_shift(tests: Mapping[str, Sequence[float]]) -> float | None:
    """The median loss of a launch whose metrics moved all alike; None if they did not.

    More than half of at least ten metrics, and of the tests, must have lost (or gained) more than 1.5 %: the many
    metrics of one test, or of a few, are those of a program.

    Args:
        tests: Of each test the losses of its metrics: logarithms, above 0 is worse.
    """
    losses = [loss for of_test in tests.values() for loss in of_test]
    if len(losses) < SHIFT_FIGURES:
        return None
    lost, gained = statistics.median_low(losses) > SHIFT, statistics.median_high(losses) < -SHIFT
    if not (lost or gained):
        return None
    way = 1.0 if lost else -1.0
    moved = sum(any(way * loss > SHIFT for loss in of_test) for of_test in tests.values())
    return statistics.median(losses) if 2 * moved > len(tests) else None


class Shifts:
    """The losses of a run's first launch and of a second one, which tell together whether all metrics moved alike."""

    def __init__(self) -> None:
        self._losses: tuple[dict[tuple[str, str], float], ...] = ({}, {})
        """By test and metric, of each launch."""

    def note(self, test: str, name: str, loss: float) -> None:
        """Takes the loss of a metric in the first launch: a logarithm, above 0 is worse."""
        self._losses[0][test, name] = loss

    def note_second(self, test: str, name: str, loss: float) -> None:
        """Takes the loss of a metric in the second launch, if the first one had it."""
        if (test, name) in self._losses[0]:
            self._losses[1][test, name] = loss

    @property
    def suspects(self) -> list[str]:
        """The tests whose metrics a second launch has to confirm, if the metrics of the first one moved all alike."""
        return list(dict.fromkeys(test for test, _ in self._losses[0])) if self._compute_shift(0) is not None else []

    @property
    def shift(self) -> float | None:
        """By how much metrics moved all alike in both launches, as a fraction, worse above 0; None if they did not.

        The smaller one of the two moves.
        """
        first, second = self._compute_shift(0), self._compute_shift(1)
        if first is None or second is None or (first > 0) != (second > 0):
            return None
        return math.expm1(min(first, second, key=abs))

    def _compute_shift(self, launch: int) -> float | None:
        tests: dict[str, list[float]] = {}
        for (test, _), loss in self._losses[launch].items():
            tests.setdefault(test, []).append(loss)
        return compute_shift(tests)
