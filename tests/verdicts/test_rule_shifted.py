"""Where most checks moved together, the whole machine did."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.verdicts.rule import shifted
from tests.baselines.by_hand import close


@pytest.mark.parametrize(
    ("losses", "size"),
    [
        ([0.02] * 10, 0.02),
        ([-0.02] * 10, -0.02),
        ([0.0148] * 50, None),
        ([0.0149] * 50, 0.0149),
        ([0.02] * 9, None),
        ([0.3] * 4 + [0.0] * 6, None),
        ([0.3] * 5 + [0.0] * 5, None),  # as many regressions as not are no shift
        ([-0.3] * 5 + [0.0] * 5, None),
        ([0.3] * 6 + [0.0] * 4, 0.3),
        ([0.02] * 7 + [-0.5] * 4, 0.02),
        ([], None),
    ],
)
def test_a_shift_of_the_whole_machine(losses: list[float], size: float | None) -> None:
    assert shifted(losses) == (None if size is None else close(size))


@given(st.lists(st.floats(-0.5, 0.5), min_size=10))
def test_a_shift_is_symmetric(losses: list[float]) -> None:
    shift = shifted(losses)
    assert shifted([-loss for loss in losses]) == (None if shift is None else -shift)


def test_chance_shifts_no_suite_of_the_fewest_checks() -> None:
    """With a spread of 1 % and 10 launches in each baseline SHIFT is 3.5 standard errors away: 5 in 10 000 runs."""
    draws = random.Random(1)
    spread = 0.01 * math.sqrt(1 + math.pi / 20)
    found = [shifted([draws.gauss(0, spread) for _ in range(10)]) for _ in range(4000)]
    assert sum(shift is not None for shift in found) <= 10
