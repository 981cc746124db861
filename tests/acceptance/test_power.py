"""How rare a silent corruption a soak would have seen."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf.features.acceptance.power import compute_seen_power, say_soaked


def missed(power: int, compared: int) -> float:
    """The chance that all comparisons miss a fault of 1 in 10^power operations."""
    return math.exp(compared * math.log1p(-(10.0**-power)))


@given(st.integers(0, 10**12))
@example(28)
@example(29)
@example(298)
@example(299)
@example(2994)
@example(2995)
def test_the_power_is_the_largest_whose_fault_is_seen_with_95_percent(compared: int) -> None:
    power = compute_seen_power(compared)
    if power is not None:
        assert missed(power, compared) <= 0.05
    assert missed((power or 0) + 1, compared) > 0.05


@pytest.mark.parametrize(
    ("compared", "power"), [(0, None), (28, None), (29, 1), (298, 1), (299, 2), (2_994, 2), (2_995, 3), (39_000, 4)]
)
def test_a_fault_of_1_in_10_to_a_power_needs_3_times_as_many_operations(compared: int, power: int | None) -> None:
    assert compute_seen_power(compared) == power


def test_what_several_tests_compared_is_added_up_by_kind() -> None:
    told = [{"soak products": 13_696, "soak copies": 27_392, "other": 5}, {"soak products": 25_304}, {}]
    assert say_soaked(told) == (
        "soak: 39 000 products, 27 000 copies right to the bit; a fault that corrupts 1 of 10^4 products, 10^3 copies "
        "is seen with 95 %"
    )


def test_a_kind_with_few_comparisons_is_counted_and_promises_nothing() -> None:
    assert say_soaked([{"soak products": 300, "soak sums": 7}]) == (
        "soak: 300 products, 7 sums right to the bit; a fault that corrupts 1 of 10^2 products is seen with 95 %"
    )


@pytest.mark.parametrize("told", [[], [{}], [{"soak products": 28}], [{"soak products": 0}], [{"soak of": "x"}]])
def test_without_a_soak_that_could_see_a_fault_nothing_is_said(told: list[dict[str, int | float | str]]) -> None:
    assert say_soaked(told) == ""
