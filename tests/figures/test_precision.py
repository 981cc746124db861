"""The interval of a median, and when it is narrow enough."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.figures.precision import compute_halfwidth, compute_median_interval


@pytest.mark.parametrize(
    # Conover, table A3's binomial sums: the places of the bounds for n values.
    ("n", "place"),
    [(6, 1), (8, 1), (9, 2), (10, 2), (11, 2), (12, 3), (20, 6), (50, 18), (100, 40)],
)
def test_the_bounds_are_order_statistics(n: int, place: int) -> None:
    values = list(range(1, n + 1))
    random.Random(n).shuffle(values)
    assert compute_median_interval([float(value) for value in values]) == (place, n + 1 - place)


@pytest.mark.parametrize("n", range(6))
def test_few_values_have_no_interval(n: int) -> None:
    assert compute_median_interval([1.0] * n) is None
    assert math.isinf(compute_halfwidth([1.0] * n))


@given(st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=60))
def test_the_median_lies_in_its_interval(values: list[float]) -> None:
    interval = compute_median_interval(values)
    assert interval is not None
    low, high = interval
    assert low <= sorted(values)[len(values) // 2] <= high
    assert 0 <= compute_halfwidth(values) < 1


def test_it_holds_the_median_as_often_as_it_says() -> None:
    draw = random.Random(1)
    held = 0
    for _ in range(4000):
        low, high = compute_median_interval([draw.lognormvariate(0.0, 1.0) for _ in range(15)]) or (2.0, 0.0)
        held += low <= 1.0 <= high  # the median of that distribution
    # Exactly 0.9648 for 15 values; five standard deviations of 4000 draws are 0.0146.
    assert abs(held / 4000 - 0.9648) < 0.0146
