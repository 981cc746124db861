"""What the launches of a baseline tell: where a check lies, and how far launches scatter."""

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.verdicts.history import History

logs = st.floats(-20, 20)
spreads = st.floats(0, 0.05)


def close(number: float) -> Any:
    return pytest.approx(number, rel=1e-5)


def test_a_history_of_launches_by_hand() -> None:
    history = History.of([0.03, 0.01, 0.02, 0.07, 0.00])
    # Deviations from 0.02: 0.01, 0.01, 0, 0.05, 0.02, of which 0.01 is in the middle; 1.206 is for 5 launches.
    assert (history.launches, history.center, history.spread) == (5, 0.02, close(0.01 * 1.482602 * 1.206))
    assert history.dof == close(2.4)


def test_a_history_by_the_standard_deviation() -> None:
    history = History.of([0.03, 0.01, 0.02, 0.07, 0.00], robust=False)
    assert (history.center, history.spread, history.dof) == (0.02, close(math.sqrt(0.00292 / 4)), 4)


def test_one_launch_has_no_spread() -> None:
    assert History.of([0.5]) == History(1, 0.5, 0.0)
    assert History.of([0.5]).dof == 0


@pytest.mark.parametrize("launches", [2, 3, 4, 5, 6, 7, 8, 9, 10, 20])
def test_the_spread_of_normal_launches_is_right_on_average(launches: int) -> None:
    draws = random.Random(launches)
    found = [History.of([draws.gauss(3, 0.01) for _ in range(launches)]).spread for _ in range(4000)]
    chance = 3 * statistics.stdev(found) / math.sqrt(len(found))
    assert chance < 0.0005  # or a factor of 1.05 would go unseen
    assert statistics.fmean(found) == pytest.approx(0.01, abs=chance + 0.0001)  # the factors are right within 1 %


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30), st.booleans(), logs, st.floats(0.1, 10))
def test_a_history_moves_and_grows_with_its_launches(
    launches: list[float], robust: bool, by: float, factor: float
) -> None:
    history = History.of(launches, robust=robust)
    moved = History.of([by + factor * launch for launch in launches], robust=robust)
    assert moved.center == pytest.approx(by + factor * history.center, abs=1e-9)
    assert moved.spread == pytest.approx(factor * history.spread, abs=1e-9)


@given(st.lists(st.floats(-0.01, 0.01), min_size=5, max_size=30), st.floats(0.05, 5))
def test_one_bad_launch_hardly_moves_a_history(launches: list[float], worse: float) -> None:
    spoilt = History.of([*launches[1:], worse])
    assert abs(spoilt.center) <= 0.01
    assert spoilt.spread <= 0.02 * 1.4827 * 1.206


@pytest.mark.parametrize(
    ("launches", "message"),
    [
        ([], "logs holds 0 launches, expected at least 1: record a baseline"),
        ([0.1, math.inf], "logs holds inf, expected finite logarithms: check the measurement"),
        ([math.nan], "logs holds nan, expected finite logarithms: check the measurement"),
    ],
)
def test_launches_that_are_no_history_are_refused(launches: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        History.of(launches)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"launches": 0}, "history launches is 0, expected a whole number of at least 1"),
        ({"launches": 2.5}, r"history launches is 2\.5, expected a whole number of at least 1"),
        ({"center": math.nan}, "history center is nan, expected the logarithm of a figure"),
        ({"spread": -0.1}, r"history spread is -0\.1, expected a finite number of at least 0"),
        ({"dof_per_launch": math.inf}, "history dof_per_launch is inf, expected a finite number of at least 0"),
    ],
)
def test_a_history_without_a_meaning_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        History(**{"launches": 5, "center": 0.0, "spread": 0.01, **fields})


def test_the_spread_within_machines_by_hand() -> None:
    # Distances from 0.02 and from 1.03, times 1.118 and 1.225: 0 twice, 0.0112 twice, 0.0224 twice, 0.0367 twice.
    here, there = [0.0, 0.01, 0.02, 0.03, 0.04], [1.0, 1.03, 1.06]
    pooled = History.within([here, there, [0.5]])
    assert (pooled.launches, pooled.center) == (9, 0.04)
    assert pooled.spread == pytest.approx(1.4826 * (0.01 + 0.02) / 2 * math.sqrt(5 / 4), rel=1e-4)
    assert pooled.dof == pytest.approx(0.6 * 6)
    assert History.within([here]) == History.of(here)
    assert History.within([[0.0], [1.0], [3.0]]) == History.of([0.0, 1.0, 3.0])
    with pytest.raises(ValueError, match="logs holds 0 launches"):
        History.within([])


@pytest.mark.parametrize(("machines", "launches"), [(2, 10), (4, 5), (10, 2), (5, 3)])
def test_the_spread_within_machines_is_that_of_their_launches(machines: int, launches: int) -> None:
    draws = random.Random(1)

    def spread(bad: float) -> float:
        drawn = [[place + draws.gauss(0, 1) for _ in range(launches)] for place in range(0, 100 * machines, 100)]
        drawn[0][0] += bad
        return History.within(drawn).spread

    assert statistics.fmean(spread(0.0) ** 2 for _ in range(2000)) == pytest.approx(1.12, abs=0.1)
    assert statistics.fmean(spread(30.0) for _ in range(500)) < 3  # one bad launch of ten times all others' distance
