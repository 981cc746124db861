"""What the checks of a suite tell of each other's spread."""

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.prior import prior_dof, prior_spread

FLOOR = 0.003


def close(number: float) -> Any:
    return pytest.approx(number, rel=1e-5)


def scattered(spread: float, dof: float = 5.0) -> History:
    return History(5, 0.0, spread, dof)


def test_the_suites_spread_is_its_median() -> None:
    suite = [scattered(spread) for spread in (0.01, 0.03, 0.002)]
    assert prior_spread(suite) == close(0.01)
    assert prior_spread([*suite, scattered(0.02)]) == close(math.sqrt((0.01**2 + 0.02**2) / 2))


def test_a_single_launch_says_nothing_of_the_suites_spread() -> None:
    assert prior_spread([History.of([1.0]), History(2, 0.0, 0.01, 0.8)]) == close(0.01)
    with pytest.raises(ValueError, match=r"^2 histories have no 2 launches, expected one that has: record more than"):
        prior_spread([History.of([1.0]), History.of([2.0])])


def test_how_alike_checks_are_by_hand() -> None:
    # Ten logarithms of variances, half of them higher by 1.934819: their variance is 3.743525 / 4 * 10/9 = 1.039868.
    # That is trigamma(2) + trigamma(3), pi^2/6 - 1 and pi^2/6 - 5/4: 4 degrees of freedom each, and the prior's 6.
    suite = [scattered(0.01 * math.exp(log_variance / 2), 4) for log_variance in (0, 1.934819) for _ in range(5)]
    assert prior_dof(suite, FLOOR) == close(6)


@pytest.mark.parametrize("alike", [1.0, 2.0, 6.0])
def test_it_finds_how_alike_drawn_checks_are(alike: float) -> None:
    draws, dof = random.Random(1), 8.0

    def drawn() -> History:
        # A scaled inverse chi-square variance, and an estimate of it: chi-square is gamma of half, scaled by 2.
        variance = alike / draws.gammavariate(alike / 2, 2)
        return scattered(math.sqrt(variance * draws.gammavariate(dof / 2, 2) / dof), dof)

    found = [prior_dof([drawn() for _ in range(1000)], 1e-9) for _ in range(20)]
    assert statistics.median(found) == pytest.approx(alike, rel=0.1)


def test_checks_that_differ_by_chance_are_all_alike() -> None:
    assert prior_dof([scattered(0.01)] * 10, FLOOR) == math.inf
    assert prior_dof([scattered(FLOOR / (1 + i)) for i in range(10)], FLOOR) == math.inf  # all at the floor


def test_of_spreads_below_the_floor_chance_takes_none_of_what_makes_checks_differ() -> None:
    # Nine at the floor and one e times as wide: their variance is 0.4, of which chance has a tenth of trigamma(2).
    suite = [scattered(FLOOR / 2, 4)] * 9 + [scattered(FLOOR * math.e, 4)]
    left = 0.4 - 0.1 * (math.pi**2 / 6 - 1)
    dof = prior_dof(suite, FLOOR)
    # trigamma(x) is between 1/x + 1/(2 x^2) and that and 1/(6 x^3).
    assert 0 < left - (2 / dof + 2 / dof**2) < 8 / (6 * dof**3)


def test_nine_checks_do_not_tell_how_alike_they_are() -> None:
    suite = [scattered(spread) for spread in (0.003, 0.03) for _ in range(5)]
    assert prior_dof(suite, FLOOR) < 1
    assert prior_dof(suite[:9], FLOOR) == math.inf
    assert prior_dof([*suite[:9], History.of([1.0])], FLOOR) == math.inf  # one launch has no spread


@given(st.lists(st.builds(scattered, st.floats(0, 1), st.floats(0.1, 50)), max_size=30))
def test_a_suite_is_always_worth_something(suite: list[History]) -> None:
    assert prior_dof(suite, FLOOR) >= 0.1
