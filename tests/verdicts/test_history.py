"""What the record tells about a figure: where it lies, and how far launches and machines scatter."""

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.verdicts.history import History, compute_spread, drop_duplicates, median_variance
from tests.baselines.by_hand import close

logs = st.floats(-20, 20)
FIVE = [0.03, 0.01, 0.02, 0.07, 0.00]


def of_one(launches: list[float]) -> History:
    return History.of({"here": launches}, "here")


def test_the_launches_of_one_machine_by_hand() -> None:
    history = of_one(FIVE)
    # Distances from 0.02, without the largest: 0.01, 0.01, 0, 0.02; 5/4 for the median. Of a normal variable the four
    # fifths nearest to 0 are within 1.281552, their variance 1 - 2 * 1.281552 * 0.175498 / 0.8 = 0.437731.
    assert history.spread == close(math.sqrt(0.0006 / 4 * 5 / 4 / 0.437731))
    assert history == History(5, 0.02, history.spread, 0.8 * 3, 0.0, 1, known=True)


def test_one_launch_has_no_spread() -> None:
    assert of_one([0.5]) == History(1, 0.5, 0.0, 0.0, 0.0, 1, known=False)


def test_two_launches_have_the_standard_deviation() -> None:
    history = of_one([0.0, 0.02])
    assert (history.launches, history.center) == (2, 0.01)
    assert (history.spread, history.dof) == (close(0.02 / math.sqrt(2)), close(0.8))


@pytest.mark.parametrize(("launches", "known"), [(4, False), (5, True)])
def test_the_record_knows_gpus_with_5_launches(launches: int, known: bool) -> None:
    record = {"here": [1.0] * launches, "there": [2.0] * 10}
    found = History.of(record, "here")
    assert found.known is known
    assert (found.launches, found.center) == ((5, 1.0) if known else (14, 2.0))
    assert (found.between == 0.0) is known
    assert not History.of(record, "elsewhere").known


def test_launches_on_unknown_gpus_are_not_these() -> None:
    found = History.of({"": [1.0] * 9}, "")
    assert not found.known
    assert (found.launches, found.machines) == (9, 1)


def test_the_spread_within_machines_by_hand() -> None:
    # Distances from 0.02 and from 1.03, squared: 1, 1, 4, 4 and 0 times 5/4, 9, 9 and 0 times 3/2, in units of 0.0001.
    # One of 13.5 is left out, seven eighths are within 1.534121, their variance 1 - 2 * 1.534121 * 0.122989 / 0.875.
    found = History.of({"a": [0.0, 0.01, 0.02, 0.03, 0.04], "b": [1.0, 1.03, 1.06], "c": [0.5]}, "")
    assert (found.launches, found.center, found.machines) == (9, 0.04, 3)
    assert found.spread == pytest.approx(0.01 * math.sqrt((12.5 + 13.5) / 7 / 0.568732), rel=1e-4)
    assert found.dof == close(0.8 * (7 - 2))


def test_machines_with_one_launch_each_count_as_one() -> None:
    found = History.of({"a": [0.0], "b": [1.0], "c": [3.0]}, "")
    assert (found.spread, found.dof) == compute_spread([[0.0, 1.0, 3.0]])
    assert (found.machines, found.between) == (3, 0.0)  # nothing tells machines from launches


def test_the_spread_between_machines_by_hand() -> None:
    # Centres 0.01 and 0.05: variance 0.0008. Every distance within is 0.01 sqrt(2), one of four is left out, and of a
    # normal variable three quarters are within 1.150349, their variance 1 - 2 * 1.150349 * 0.205854 / 0.75 = 0.368524.
    found = History.of({"a": [0.0, 0.02], "b": [0.04, 0.06]}, "")
    within = 0.0002 / 0.368524
    assert found.spread == pytest.approx(math.sqrt(within), rel=1e-4)
    assert found.between == pytest.approx(math.sqrt(0.0008 - within / 2), rel=1e-4)


def test_machines_that_differ_by_chance_do_not_differ() -> None:
    assert History.of({"a": [0.0, 0.02], "b": [0.001, 0.021]}, "").between == 0.0


def test_the_spread_between_machines_is_estimated_without_bias() -> None:
    draws = random.Random(1)

    def square() -> float:
        machines = {str(m): [draws.gauss(0, 0.005) for _ in range(5)] for m in range(4)}
        shifted = {
            name: [y + offset for y in ys] for (name, ys), offset in zip(machines.items(), offsets(), strict=True)
        }
        return History.of(shifted, "").between ** 2

    def offsets() -> list[float]:
        return [draws.gauss(0, 0.01) for _ in range(4)]

    assert statistics.fmean(square() for _ in range(1000)) == pytest.approx(0.01**2, rel=0.1)


def test_known_gpus_that_scatter_wider_have_their_own_spread() -> None:
    quiet, noisy = [0.0, 0.001, 0.002, 0.003, 0.004], [1.0, 1.03, 1.06, 1.09, 1.12]
    record = {"quiet": quiet, "noisy": noisy}
    within, dof = compute_spread([quiet, noisy])
    on_quiet, on_noisy = History.of(record, "quiet"), History.of(record, "noisy")
    assert (on_quiet.center, on_quiet.spread, on_quiet.dof) == (0.002, within, dof)
    assert (on_noisy.center, on_noisy.spread, on_noisy.dof) == (1.06, compute_spread([noisy])[0], dof)
    assert on_noisy.spread > within


@pytest.mark.parametrize("launches", [2, 3, 4, 5, 6, 7, 8, 9, 10, 20])
def test_the_variance_of_normal_launches_is_right_or_a_little_wide(launches: int) -> None:
    draws = random.Random(launches)
    found = [compute_spread([[draws.gauss(3, 0.01) for _ in range(launches)]]) for _ in range(2000)]
    squares = [spread**2 / 0.01**2 for spread, _ in found]
    chance = 3 * statistics.stdev(squares) / math.sqrt(len(squares))
    assert chance < 0.12
    assert -0.06 - chance < statistics.fmean(squares) - 1 < 0.15 + chance
    # It is not worth more than it says: the variance of a mean square is 2 / dof of its square.
    worth = 2 * statistics.fmean(squares) ** 2 / statistics.variance(squares)
    assert 0.75 * worth < found[0][1] < 1.1 * worth


@pytest.mark.parametrize(("machines", "launches"), [(2, 10), (4, 5), (10, 2), (5, 3)])
def test_the_spread_within_machines_is_that_of_their_launches(machines: int, launches: int) -> None:
    draws = random.Random(1)

    def spread(bad: float) -> float:
        drawn = [[place + draws.gauss(0, 1) for _ in range(launches)] for place in range(0, 100 * machines, 100)]
        drawn[0][0] += bad
        return compute_spread(drawn)[0]

    assert statistics.fmean(spread(0.0) ** 2 for _ in range(1000)) == pytest.approx(1.03, abs=0.15)
    assert statistics.fmean(spread(30.0) for _ in range(200)) < 3  # one bad launch of ten times all others' distance


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30), logs, st.floats(0.1, 10))
def test_a_history_moves_and_grows_with_its_launches(launches: list[float], by: float, factor: float) -> None:
    history, moved = of_one(launches), of_one([by + factor * launch for launch in launches])
    assert moved.center == pytest.approx(by + factor * history.center, abs=1e-9)
    assert moved.spread == pytest.approx(factor * history.spread, abs=1e-9)


@given(st.lists(st.floats(-0.01, 0.01), min_size=5, max_size=30), st.floats(0.05, 5))
def test_one_bad_launch_hardly_moves_a_history(launches: list[float], worse: float) -> None:
    spoilt = of_one([*launches[1:], worse])
    assert abs(spoilt.center) <= 0.01
    assert spoilt.spread <= 0.02 * math.sqrt(5 / 4 / 0.437731)


def test_usual_speeds_are_spread_and_no_bad_launches() -> None:
    # Four launches of ten at another speed: the median distance is that of the other six.
    assert of_one([0.0, 0.0005] * 3 + [0.05, 0.0505] * 2).spread > 0.03


@pytest.mark.parametrize(("n", "variance"), [(1, 1.0), (2, 0.5), (3, math.pi / 6), (10, math.pi / 20)])
def test_the_variance_of_a_median(n: int, variance: float) -> None:
    assert median_variance(n) == close(variance)


def test_figures_that_scatter_alike_are_one_but_for_other_launches() -> None:
    ten = History(10, 0.0, 0.01, 7.2, 0.0, 1, known=True)
    five, wider, narrower = replace(ten, launches=5), replace(ten, spread=0.0103), replace(ten, spread=0.00985)
    assert drop_duplicates([ten, five, replace(ten, center=5.0), wider, narrower, five]) == [ten, five, wider]


@pytest.mark.parametrize(
    ("launches", "message"),
    [
        ([], "machines holds 0 launches, expected at least 1: record a baseline"),
        ([0.1, math.inf], "machines holds inf, expected finite logarithms: check the measurement"),
        ([math.nan], "machines holds nan, expected finite logarithms: check the measurement"),
    ],
)
def test_launches_that_are_no_history_are_refused(launches: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        of_one(launches)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"launches": 0}, "history launches is 0, expected a whole number of at least 1"),
        ({"launches": 2.5}, r"history launches is 2\.5, expected a whole number of at least 1"),
        ({"machines": True}, "history machines is True, expected a whole number of at least 1"),
        ({"center": math.nan}, "history center is nan, expected the logarithm of a metric"),
        ({"spread": -0.1}, r"history spread is -0\.1, expected a finite number of at least 0"),
        ({"dof": math.inf}, "history dof is inf, expected a finite number of at least 0"),
        ({"between": -1.0}, r"history between is -1\.0, expected a finite number of at least 0"),
    ],
)
def test_a_history_without_a_meaning_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        replace(History(5, 0.0, 0.01, 2.4, 0.0, 1, known=True), **fields)
