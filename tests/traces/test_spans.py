"""Union, difference and length of spans."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.traces.spans import Span, compute_length, merge_spans, subtract_spans

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda one: (float(one[0]), float(sum(one)))))


def cells(spans: list[Span]) -> set[int]:
    """The unit cells that these spans of whole numbers cover."""
    return {cell for start, end in spans for cell in range(int(start), int(end))}


@given(SPANS)
def test_a_union_covers_the_same_time_once(spans: list[Span]) -> None:
    found = merge_spans(spans)
    assert cells(found) == cells(spans)
    assert compute_length(found) == len(cells(spans))
    assert all(before[1] < after[0] for before, after in itertools.pairwise(found))


@given(SPANS, SPANS)
def test_a_difference_is_what_the_others_leave(spans: list[Span], others: list[Span]) -> None:
    found = subtract_spans(merge_spans(spans), merge_spans(others))
    assert cells(found) == cells(spans) - cells(others)
    assert compute_length(found) == len(cells(spans) - cells(others))


def test_an_example() -> None:
    assert subtract_spans([(0.0, 10.0)], [(2.0, 3.0), (9.0, 12.0)]) == [(0.0, 2.0), (3.0, 9.0)]
    assert compute_length([(0.0, 2.0), (3.0, 9.0)]) == pytest.approx(8.0)
