"""Who is slow among many, and how seldom anybody is accused wrongly."""

import itertools
import math

import numpy as np
import pytest

from benchmarks import fleet_simulation
from pytest_gpuperf.features.fleet.outliers import LEAST_HOSTS, LEAST_LOSS, compare, compute_spread
from pytest_gpuperf.features.fleet.results_of_hosts import Figure


def figure(values: list[float], *, better: str = "higher", name: str = "busbw") -> Figure:
    by_host = {f"h{index}": value for index, value in enumerate(values)}
    return Figure("test", name, "B/s", "higher" if better == "higher" else "lower", by_host)


def scattered(count: int, spread: float = 0.01, seed: int = 1) -> list[float]:
    return [100e9 * math.exp(log) for log in np.random.default_rng(seed).normal(0, spread, count)]


@pytest.mark.parametrize("n", [10, 25, 200])
def test_the_spread_is_the_standard_deviation_of_normal_values(n: int) -> None:
    rng = np.random.default_rng(2)
    found = [compute_spread(rng.normal(0, 1, n).tolist()) for _ in range(200)]
    assert np.mean(found) == pytest.approx(1, rel=0.05)


def test_hosts_far_away_do_not_move_the_spread() -> None:
    values = np.random.default_rng(3).normal(0, 1, 100).tolist()
    assert compute_spread([*values[:80], *[1000.0] * 20]) < 1.7


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_a_slow_host_is_named_and_a_fast_one_is_not(better: str) -> None:
    values = scattered(60)
    values[7], values[9] = (90e9, 110e9) if better == "higher" else (110e9, 90e9)
    (compared,) = compare([figure(values, better=better)])
    assert [standing.host for standing in compared.slow] == ["h7"]
    slow = compared.slow[0]
    assert slow.loss == pytest.approx(0.1, abs=0.015)
    assert slow.z == pytest.approx(slow.loss / compared.spread)
    assert 0.04 < compared.seen < 0.09


def test_equal_figures_accuse_nobody_for_a_last_digit() -> None:
    (compared,) = compare([figure([100e9] * 30 + [99.9e9])])
    assert compared.slow == ()
    assert compared.seen == pytest.approx(LEAST_LOSS, rel=0.02)


def test_a_small_loss_is_never_worth_an_accusation() -> None:
    (compared,) = compare([figure([100e9] * 30 + [98.6e9])])
    assert compared.slow == ()
    (compared,) = compare([figure([100e9] * 30 + [98e9])])
    assert [standing.host for standing in compared.slow] == ["h30"]


def test_the_more_is_compared_the_more_it_takes() -> None:
    one = compare([figure(scattered(30))])[0].seen
    many = compare([figure(scattered(30), name=str(index)) for index in range(100)])[0].seen
    assert many > 1.2 * one


def test_the_fewest_hosts_are_accused_as_seldom_as_is_promised() -> None:
    fleets = [figure(scattered(LEAST_HOSTS, 0.1, seed)) for seed in range(2000)]
    assert sum(bool(compare([fleet], 0.01)[0].slow) for fleet in fleets) <= 0.01 * len(fleets)


def test_the_spread_is_a_quartile_of_the_differences() -> None:
    """The 10th smallest of 28, times the factors of normal values and of 8 of them."""
    values = scattered(8, 1.0)
    differences = sorted(abs(one - other) for one, other in itertools.combinations(values, 2))
    assert compute_spread(values) == pytest.approx(2.2219 * 8 / 11.8 * differences[9], rel=1e-12)
    assert compute_spread([1.0] * 8) == pytest.approx(0.0, abs=1e-12)


def test_few_hosts_are_not_compared() -> None:
    assert compare([figure([100e9] * (LEAST_HOSTS - 1))]) == ()
    assert compare([]) == ()


def test_simulated_fleets() -> None:
    tally = fleet_simulation.simulate(runs=10, hosts=100, figures=8, seed=5)
    assert tally == fleet_simulation.Tally(10, right=10, accused=0)
    assert tally.kept(finds=True)


@pytest.mark.parametrize(("right", "accused", "kept"), [(99, 1, True), (98, 0, False), (100, 2, False)])
def test_what_a_simulation_promises(right: int, accused: int, kept: bool) -> None:
    assert fleet_simulation.Tally(100, right, accused).kept(finds=True) is kept
    assert fleet_simulation.Tally(100, right, accused).kept(finds=False) is (accused < 2)


def test_the_simulations_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet_simulation.main(["--runs", "1", "--figures", "3", "--check"]) == 0
    assert "  200  1 %                       1  0\n" in capsys.readouterr().out
