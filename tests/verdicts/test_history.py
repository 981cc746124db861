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
    # Distances from 0.02, without the largest: 0.01, 0.01, 0, 0.02; 5/4 for the median. Of a normal variable the four
    # fifths nearest to 0 are within 1.281552, their variance 1 - 2 * 1.281552 * 0.175498 / 0.8 = 0.437731.
    assert (history.launches, history.center) == (5, 0.02)
    assert history.spread == close(math.sqrt(0.0006 / 4 * 5 / 4 / 0.437731))
    assert history.dof == close(0.8 * 3)


def test_one_launch_has_no_spread() -> None:
    assert History.of([0.5]) == History(1, 0.5, 0.0, 0.0)


def test_two_launches_have_the_standard_deviation() -> None:
    history = History.of([0.0, 0.02])
    assert (history.launches, history.center) == (2, 0.01)
    assert (history.spread, history.dof) == (close(0.02 / math.sqrt(2)), close(0.8))


@pytest.mark.parametrize("launches", [2, 3, 4, 5, 6, 7, 8, 9, 10, 20])
def test_the_variance_of_normal_launches_is_right_or_a_little_wide(launches: int) -> None:
    draws = random.Random(launches)
    found = [History.of([draws.gauss(3, 0.01) for _ in range(launches)]) for _ in range(4000)]
    squares = [history.spread**2 / 0.01**2 for history in found]
    chance = 3 * statistics.stdev(squares) / math.sqrt(len(squares))
    assert chance < 0.08
    assert -0.06 - chance < statistics.fmean(squares) - 1 < 0.15 + chance
    # It is not worth more than it says: the variance of a mean square is 2 / dof of its square.
    worth = 2 * statistics.fmean(squares) ** 2 / statistics.variance(squares)
    assert found[0].dof < 1.1 * worth
    assert found[0].dof > 0.75 * worth


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30), logs, st.floats(0.1, 10))
def test_a_history_moves_and_grows_with_its_launches(launches: list[float], by: float, factor: float) -> None:
    history = History.of(launches)
    moved = History.of([by + factor * launch for launch in launches])
    assert moved.center == pytest.approx(by + factor * history.center, abs=1e-9)
    assert moved.spread == pytest.approx(factor * history.spread, abs=1e-9)


@given(st.lists(st.floats(-0.01, 0.01), min_size=5, max_size=30), st.floats(0.05, 5))
def test_one_bad_launch_hardly_moves_a_history(launches: list[float], worse: float) -> None:
    spoilt = History.of([*launches[1:], worse])
    assert abs(spoilt.center) <= 0.01
    assert spoilt.spread <= 0.02 * math.sqrt(5 / 4 / 0.437731)


def test_usual_speeds_are_spread_and_no_bad_launches() -> None:
    # Four launches of ten at another speed: the median distance is that of the other six.
    history = History.of([0.0, 0.0005] * 3 + [0.05, 0.0505] * 2)
    assert history.spread > 0.03


def test_a_longer_history_knows_its_spread_better() -> None:
    history = History(10, 0.5, 0.01, 6.4)
    assert (history.longer(20).launches, history.longer(20).dof) == (20, close(6.4 + 0.72 * 10))
    assert history.longer(1) == History(1, 0.5, 0.01, 0.0)


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
        ({"dof": math.inf}, "history dof is inf, expected a finite number of at least 0"),
    ],
)
def test_a_history_without_a_meaning_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        History(**{"launches": 5, "center": 0.0, "spread": 0.01, "dof": 2.4, **fields})


def test_the_spread_within_machines_by_hand() -> None:
    # Distances from 0.02 and from 1.03, squared: 1, 1, 4, 4 and 0 times 5/4, 9, 9 and 0 times 3/2, in units of 0.0001.
    # One of 13.5 is left out, seven eighths are within 1.534121, their variance 1 - 2 * 1.534121 * 0.122989 / 0.875.
    here, there = [0.0, 0.01, 0.02, 0.03, 0.04], [1.0, 1.03, 1.06]
    pooled = History.within([here, there, [0.5]])
    assert (pooled.launches, pooled.center) == (9, 0.04)
    assert pooled.spread == pytest.approx(0.01 * math.sqrt((12.5 + 13.5) / 7 / 0.568732), rel=1e-4)
    assert pooled.dof == close(0.8 * (7 - 2))
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

    assert statistics.fmean(spread(0.0) ** 2 for _ in range(2000)) == pytest.approx(1.03, abs=0.15)
    assert statistics.fmean(spread(30.0) for _ in range(500)) < 3  # one bad launch of ten times all others' distance


def test_of_one_of_the_machines_its_own_place_and_the_wider_of_the_two_spreads() -> None:
    quiet, noisy = [0.0, 0.001, 0.002, 0.003, 0.004], [1.0, 1.03, 1.06, 1.09, 1.12]
    everything, alone = History.within([quiet, noisy]), History.of(noisy)
    assert alone.spread > everything.spread > History.of(quiet).spread
    assert everything.of_these(quiet) == History(5, 0.002, everything.spread, everything.dof)
    assert everything.of_these(noisy) == History(5, 1.06, alone.spread, everything.dof)


def test_a_machine_that_scatters_surely_wider_is_known_by_its_own_launches_alone() -> None:
    quiet, noisy = [0.0, 0.001, 0.002, 0.003, 0.004], [1.0, 1.03, 1.06, 1.09, 1.12]
    everything, alone = History.within([*[quiet] * 4, noisy]), History.of(noisy)
    assert alone.spread > 2 * everything.spread
    assert everything.of_these(noisy) == alone


def test_of_three_launches_the_farthest_is_left_out() -> None:
    # 0 and 0.01 from the median, times 3/2; of a normal variable two thirds are within 0.967422, with the variance
    # 1 - 2 * 0.967422 * 0.249852 * 3/2.
    assert History.of([0.0, 0.01, 0.05]).spread == close(math.sqrt(0.0001 / 2 * 3 / 2 / (1 - 3 * 0.967422 * 0.249852)))
