"""Whether the figures of a launch moved all alike, which is the environment's doing, or that of a change to all."""

import math
import statistics
from collections.abc import Mapping, Sequence

# A loss that most figures of a run share is no single program's.
SHIFT = math.log(1.015)

# The median of n figures' losses has the standard error 1.25 sigma sqrt(1 + pi/(2m)) / sqrt(n): 0.43 % for sigma = 1 %,
# m = 10 and n = 10, so that SHIFT is 3.5 standard errors away. With fewer figures chance alone moves the median that
# far, and two or three real regressions are most of the suite.
SHIFT_FIGURES = 10


def shift_of(tests: Mapping[str, Sequence[float]]) -> float | None:
    """The median loss of a launch whose figures moved all alike; None if they did not.

    More than half of at least ten figures, and of the tests, must have lost (or gained) more than 1.5 %: the many
    figures of one test, or of a few, are those of a program.

    Args:
        tests: Of each test the losses of its figures: logarithms, above 0 is worse.
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
