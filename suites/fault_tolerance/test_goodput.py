"""The formulas for goodput against a simulation, and the best interval against a search."""

from __future__ import annotations

import math
import statistics

import pytest

from suites.fault_tolerance.programs.goodput import Costs

OFTEN = Costs(save=1, restart=10, between_failures=20)
USUAL = Costs(save=2, restart=30, between_failures=1000)
SELDOM = Costs(save=1, restart=0, between_failures=5000)
COSTS = [OFTEN, USUAL, SELDOM]


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("factor", [0.3, 1, 3])
def test_the_formula_is_the_mean_of_simulated_jobs(costs: Costs, factor: float) -> None:
    interval = factor * costs.daly()
    # A job's time for its work is an unbiased estimate of the expected one; its inverse, the goodput, is not.
    times = [1 / costs.simulated_goodput(interval, segments=200, seed=seed) for seed in range(100)]
    error = statistics.stdev(times) / math.sqrt(len(times))
    assert statistics.mean(times) == pytest.approx(1 / costs.goodput(interval), abs=4 * error)
    assert error < 0.02 / costs.goodput(interval)


@pytest.mark.parametrize("costs", COSTS)
def test_dalys_interval_is_the_best_one(costs: Costs) -> None:
    daly = costs.daly()
    best = max((daly * 2 ** (step / 1000) for step in range(-2000, 2001)), key=costs.goodput)
    assert daly == pytest.approx(best, rel=0.01)
    # Young's is a first order: delta beside M is neglected.
    assert costs.young() == pytest.approx(best, rel=2 * math.sqrt(costs.save / costs.between_failures))


@pytest.mark.parametrize("share", [0.25, 0.5, 1])
def test_dalys_interval_of_long_checkpoints(share: float) -> None:
    """A save takes ``share`` of the time between failures.

    Without its last term the formula is off by 4 times the bound.
    """
    costs = Costs(save=share * 100, restart=0, between_failures=100)
    daly = costs.daly()
    best = max((daly * 2 ** (step / 1000) for step in range(-2000, 2001)), key=costs.goodput)
    assert daly == pytest.approx(best, rel=0.02 * share)


@pytest.mark.parametrize("costs", COSTS)
def test_simulated_jobs_find_the_same_interval_best(costs: Costs) -> None:
    goodput = {
        factor: statistics.mean(
            costs.simulated_goodput(factor * costs.daly(), segments=400, seed=seed) for seed in range(50)
        )
        for factor in (0.25, 0.5, 1, 2, 4)
    }
    assert max(goodput, key=lambda factor: goodput[factor]) == 1, goodput


def test_without_failures_only_checkpoints_cost() -> None:
    costs = Costs(save=1, restart=100, between_failures=1e12)
    assert costs.goodput(9) == pytest.approx(0.9)
    assert costs.simulated_goodput(9, segments=10, seed=1) == pytest.approx(0.9)


def test_a_checkpoint_longer_than_failures_are_apart() -> None:
    assert Costs(save=40, restart=3, between_failures=20).daly() == 20
