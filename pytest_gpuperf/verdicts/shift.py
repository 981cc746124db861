"""Whether the figures of a run moved all alike, which is the machine's doing, not a program's."""

import math
from collections.abc import Mapping, Sequence

from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.rule import SHIFT, shifted


def distinct(histories: Sequence[History]) -> list[History]:
    """Those of one test that are not of one figure: a rate that is made of a time scatters as this does."""
    found: list[History] = []
    for known in histories:
        if not any(
            known.launches == other.launches and math.isclose(known.spread, other.spread, rel_tol=0.02, abs_tol=1e-5)
            for other in found
        ):
            found.append(known)
    return found


def shift_of(tests: Mapping[str, Mapping[str, tuple[float, History]]]) -> float | None:
    """The median loss of a run whose figures moved all alike, as ``shifted`` has it; None if they did not.

    A time and the rate made from it are one figure. And more than half of the tests must have moved: the many figures
    of one test, or of a few, are those of a program.

    Args:
        tests: Of each test its figures by name: loss, and baseline.
    """
    losses = [_independent(list(figures.values())) for figures in tests.values()]
    shift = shifted([loss for of_test in losses for loss in of_test])
    if shift is None:
        return None
    way = math.copysign(1.0, shift)
    moved = sum(any(way * loss > SHIFT for loss in of_test) for of_test in losses)
    return shift if 2 * moved > len(losses) else None


def _independent(figures: Sequence[tuple[float, History]]) -> list[float]:
    kept = distinct([known for _, known in figures])
    return [loss for loss, known in figures if any(known is one for one in kept)]
