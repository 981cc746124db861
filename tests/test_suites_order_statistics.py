"""The bounds of a median hold it as often as they should."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.shared.chances import bounds_of_median


@pytest.mark.parametrize("count", range(5, 13))
def test_the_median_is_rarely_beyond_a_bound(count: int) -> None:
    """Each sample is above the median, at 0, or below it, and both are as likely: all ways are counted."""
    ways = list(itertools.product([-1.0, 1.0], repeat=count))
    beyond = sum(bounds_of_median(way)[0] > 0 for way in ways)
    assert beyond / len(ways) <= 0.05
    assert sum(bounds_of_median(way)[1] < 0 for way in ways) == beyond


@pytest.mark.parametrize(("count", "place"), [(1, 0), (4, 0), (7, 0), (8, 1), (10, 1), (11, 2), (200, 87)])
def test_the_bounds_are_as_narrow_as_they_may(count: int, place: int) -> None:
    assert bounds_of_median([float(number) for number in range(count)]) == (place, count - 1 - place)


@given(samples=st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_the_order_of_the_samples_does_not_matter(samples: list[float]) -> None:
    assert bounds_of_median(samples) == bounds_of_median(samples[::-1])
