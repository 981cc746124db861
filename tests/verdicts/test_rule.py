"""The rule that screens by one launch and decides by fresh ones."""

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.prior import prior_dof
from pytest_gpuperf.verdicts.rule import Policy, Rule
from tests.baselines.by_hand import close, scattered

STEADY = scattered(10, 0.0, 0.005)
WIDE = scattered(10, 0.0, 0.03)
SUITE = Rule(Policy(), checks=100, prior=0.005)

# t(1e-4, 15.4), and z(0.03), from tables: 10 launches have 5.4 degrees of freedom, and the prior 10.
T = 4.842662
Z = 1.880794
LN_5 = 0.04879016
LN_1_5 = 0.01488861

logs = st.floats(-20, 20)
spreads = st.floats(0, 0.05)
histories = st.builds(scattered, st.integers(1, 40), logs, spreads)
rules = st.builds(Rule, st.just(Policy()), st.integers(1, 1000), spreads)


# The spread


def test_the_pooled_spread_by_hand() -> None:
    # (10 * 0.005^2 + 5.4 * 0.02^2) / 15.4
    assert SUITE.spread(scattered(10, 0.0, 0.02)) == close(math.sqrt((0.00025 + 0.00216) / 15.4))
    assert SUITE.dof(scattered(10, 0.0, 0.02)) == close(15.4)


@given(rules, histories)
def test_the_pooled_spread_is_between_the_suites_and_its_own_but_for_the_floor(rule: Rule, history: History) -> None:
    spread = rule.spread(history)
    low, high = sorted((rule.prior, history.spread))
    assert max(low, 0.003) - 1e-12 <= spread <= max(high, 0.003) + 1e-12


def test_a_baseline_of_one_launch_has_the_suites_spread() -> None:
    assert Rule(Policy(), 10, 0.01).spread(History.of([1.0])) == close(0.01)


def test_a_suite_of_one_check_does_not_count_its_spread_twice() -> None:
    alone = Rule.of(Policy(), [STEADY])
    assert (alone.checks, alone.dof(STEADY), alone.spread(STEADY)) == (1, close(5.4), close(0.005))
    pair = Rule.of(Policy(), [STEADY, WIDE], checks=5)
    assert (pair.checks, pair.dof(STEADY), pair.alpha) == (5, close(10.8), 0.002)
    assert Rule.of(Policy(), [STEADY] * 9).dof(STEADY) == close(15.4)


def test_a_suites_spread_is_worth_as_much_as_its_checks_are_alike() -> None:
    unlike = replace(SUITE, prior_dof=2.0)
    assert unlike.dof(WIDE) == close(7.4)
    assert unlike.spread(WIDE) == close(math.sqrt((2 * 0.005**2 + 5.4 * 0.03**2) / 7.4))
    assert replace(SUITE, prior_dof=12.0).dof(WIDE) == close(15.4)  # the policy's is the most
    suite = [STEADY] * 20 + [WIDE] * 20
    assert Rule.of(Policy(), suite).prior_dof == prior_dof(suite, Policy().floor)
    assert prior_dof(suite, Policy().floor) < 2
    wide = Policy(floor=0.01, detect=0.2)
    assert Rule.of(wide, suite).prior_dof == prior_dof(suite, 0.01) > prior_dof(suite, 0.003)


def test_a_spread_beyond_all_bounds_lets_nothing_be_seen() -> None:
    endless = Rule(Policy(), 100, 500.0)
    assert endless.detectable(scattered(5, 0.0, 500.0), 5) == math.inf
    assert endless.launches(scattered(5, 0.0, 500.0)) is None
    assert endless.rounds(scattered(5, 0.0, 500.0)) == 25  # a loss beyond all bounds may be there all the same


def test_without_any_spread_nothing_is_known() -> None:
    blind = Rule(Policy(), 1, 0.0, prior_total=0.0)
    one = History.of([0.0])
    assert blind.suspects(one, -1.0)
    assert blind.launches(one) is None
    assert blind.rounds(one) == 0
    assert blind.detectable(one, 25) == math.inf
    assert not blind.improved(one, -1.0)
    # (t(0.01, 1.44) + 1.8808) * 0.003 * sqrt(1.5708 (1/3 + 0.04)) is small enough; of 2 launches, 0.72, it is not.
    assert blind.needed(one) == 3
    with pytest.raises(ValueError, match=r"dof is 0\.0, expected 0\.5 or above"):
        blind.confirm(one, [0.0] * 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"checks": 0}, "rule checks is 0, expected a whole number of at least 1"),
        ({"checks": True}, "rule checks is True, expected a whole number of at least 1"),
        ({"prior": -0.01}, r"rule prior is -0\.01, expected a finite spread of at least 0"),
        ({"prior": math.nan}, "rule prior is nan, expected a finite spread of at least 0"),
        ({"prior_total": -1.0}, r"rule prior_total is -1\.0, expected degrees of freedom of at least 0"),
        ({"prior_dof": math.nan}, "rule prior_dof is nan, expected degrees of freedom of at least 0"),
    ],
)
def test_a_suite_without_a_meaning_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Rule(**{"policy": Policy(), "checks": 1, "prior": 0.01, **fields})


# The screen


def test_the_screen_by_hand() -> None:
    # t(0.02, 15.4) = 2.24304; the spread of one launch minus the median of ten is 0.005 * sqrt(1 + pi / 20).
    bound = LN_5 - 2.24304 * 0.005 * math.sqrt(1 + math.pi / 20)
    assert not SUITE.suspects(STEADY, bound - 1e-5)
    assert SUITE.suspects(STEADY, bound + 1e-5)


def test_of_a_wide_spread_no_launch_proves_anything() -> None:
    wide = Rule(Policy(), 100, 0.05)
    assert wide.suspects(scattered(10, 0.0, 0.05), -0.03)
    assert not wide.suspects(scattered(10, 0.0, 0.05), -0.10)


@given(rules, histories, logs, st.floats(0, 5))
def test_a_worse_launch_is_no_less_suspect(rule: Rule, history: History, y: float, more: float) -> None:
    assert not rule.suspects(history, y) or rule.suspects(history, y + more)


@given(rules, histories, logs, st.floats(1, 10))
def test_a_wider_spread_makes_no_launch_less_suspect(rule: Rule, history: History, y: float, factor: float) -> None:
    wider = replace(history, spread=history.spread * factor)
    assert not rule.suspects(history, y) or rule.suspects(wider, y)


@given(st.floats(0.0, 0.03), st.integers(2, 40))
def test_the_screen_passes_few_slow_programs(spread: float, launches: int) -> None:
    """With the spread known, one launch of a program that is slower by 5 % is normal around ln 1.05."""
    rule = Rule(Policy(prior_dof=1e6), 100, max(spread, 0.003))
    history = scattered(launches, 0.0, max(spread, 0.003))
    one = statistics.NormalDist(LN_5, rule.spread(history) * math.sqrt(1 + math.pi / 2 / launches))
    for chance, suspect in ((0.0199, False), (0.0201, True)):
        assert rule.suspects(history, one.inv_cdf(chance)) is suspect


# How many launches, and what they show


def test_what_launches_show_by_hand() -> None:
    error = 0.005 * math.sqrt(math.pi / 2 * (1 / 10 + 1 / 7))
    assert SUITE.detectable(STEADY, 7) == close(math.exp((T + Z) * error) - 1)
    few = Rule(Policy(), checks=1, prior=0.003)  # t(0.01, 15.4) * error is less than ln 1.015
    error = 0.003 * math.sqrt(math.pi / 2 * (1 / 10 + 1 / 25))
    assert few.detectable(scattered(10, 0.0, 0.0), 25) == close(math.exp(LN_1_5 + Z * error) - 1)


@pytest.mark.parametrize(
    ("spread", "launches"),
    # (T + Z) s sqrt(pi/2 (1/10 + 1/k)) <= ln 1.05: 1/k <= (0.04879 / (6.7235 s))^2 / 1.5708 - 0.1
    [(0.005, 5), (0.010, 5), (0.0115, 7), (0.012, 8), (0.014, 15), (0.0150, 21), (0.0155, None), (0.03, None)],
)
def test_how_many_launches_confirm(spread: float, launches: int | None) -> None:
    rule = Rule(Policy(), 100, spread)
    assert rule.launches(scattered(10, 1.0, spread)) == launches
    assert rule.rounds(scattered(10, 1.0, spread)) == (launches or 25)


@given(rules, histories)
def test_the_launches_are_the_fewest_that_show_what_is_to_be_found(rule: Rule, history: History) -> None:
    k, policy = rule.launches(history), rule.policy
    if k is None:
        assert rule.detectable(history, policy.kmax) > policy.detect
        return
    assert policy.kmin <= k <= policy.kmax
    assert rule.detectable(history, k) <= policy.detect
    assert k == policy.kmin or rule.detectable(history, k - 1) > policy.detect


@given(rules, histories, st.integers(3, 50), st.integers(1, 50))
def test_more_launches_show_smaller_slowdowns(rule: Rule, history: History, k: int, more: int) -> None:
    assert rule.detectable(history, k + more) < rule.detectable(history, k)
    longer = replace(history, launches=history.launches + more)
    if history.spread >= rule.prior and history.launches > 1:  # else more launches may raise the pooled spread
        same = replace(rule, prior=history.spread)
        assert same.detectable(longer, k) < same.detectable(history, k)


@given(rules, histories, st.integers(3, 25), st.integers(1, 1000))
def test_more_checks_are_stricter(rule: Rule, history: History, k: int, more: int) -> None:
    larger = replace(rule, checks=rule.checks + more)
    assert larger.detectable(history, k) >= rule.detectable(history, k)
    assert larger.alpha < rule.alpha
    if (launches := larger.launches(history)) is not None:
        fewer = rule.launches(history)
        assert fewer is not None
        assert fewer <= launches


@given(rules, histories, st.integers(3, 25))
def test_nothing_below_min_effect_is_detectable(rule: Rule, history: History, k: int) -> None:
    assert rule.detectable(history, k) > rule.policy.min_effect


def test_needed_launches_by_hand() -> None:
    # s = 1.55 %, kmax = 25: t(1e-4, 15.4 + 0.72 (m - 10)) + 1.8808 <= 0.04879016 / (0.0155 sqrt(1.5708 (1/m + 0.04)))
    # m = 10: 6.723 > 6.713; m = 11: 6.671 <= 6.873.
    assert Rule(Policy(), 100, 0.0155).needed(scattered(10, 0.0, 0.0155)) == 11
    # s = 0.6 %: m = 1 gives 0.0581 with t(1e-4, 10) = 5.694, m = 2 gives 0.0410 with t(1e-4, 10.6) = 5.542.
    assert Rule(Policy(), 100, 0.006).needed(STEADY) == 2
    assert SUITE.needed(scattered(10, 0.0, 0.2)) is None


@given(rules, histories)
def test_the_needed_launches_are_the_fewest(rule: Rule, history: History) -> None:
    needed = rule.needed(history)

    def decides(launches: int) -> bool:
        same = replace(rule, prior=rule.spread(history))
        return same.launches(replace(history, spread=rule.spread(history)).longer(launches)) is not None

    if needed is None:
        assert not decides(1000)
    else:
        assert decides(needed)
        assert needed == 1 or not decides(needed - 1)
    if rule.launches(history) is not None:
        assert needed is not None
        assert needed <= history.launches


# The confirmation


def test_a_confirmation_by_hand() -> None:
    margin = T * 0.005 * math.sqrt(math.pi / 2 * (1 / 10 + 1 / 5))  # 1.66 %
    found = SUITE.confirm(replace(STEADY, center=2.0), [2.0, 2.9, 2.02, 2.01, 2.03])
    assert found.regressed
    assert (found.loss, found.lower, found.upper) == (close(0.02), close(0.02 - margin), close(0.02 + margin))
    bound = replace(STEADY, center=0.0)
    assert not SUITE.confirm(bound, [margin - 1e-5] * 5).regressed
    assert SUITE.confirm(bound, [margin + 1e-5] * 5).regressed


def test_a_steady_check_has_not_regressed_by_less_than_min_effect() -> None:
    steady = Rule(Policy(), 1, 0.003)
    found = steady.confirm(scattered(1000, 0.0, 0.0), [0.0148] * 9)
    assert found.lower > 0
    assert not found.regressed
    assert steady.confirm(scattered(1000, 0.0, 0.0), [0.0150] * 9).regressed


@given(rules, histories, st.lists(st.floats(-1, 1), min_size=5, max_size=25))
def test_a_confirmation_accuses_nobody_below_min_effect_or_within_the_bounds(
    rule: Rule, history: History, losses: list[float]
) -> None:
    found = rule.confirm(history, [history.center + loss for loss in losses])
    assert found.loss == pytest.approx(statistics.median(losses), abs=1e-9)
    assert found.lower < found.loss < found.upper
    assert found.upper - found.loss == pytest.approx(found.loss - found.lower)
    assert found.regressed is (found.lower > 0 and found.loss > LN_1_5) or abs(found.loss - LN_1_5) < 1e-7


@given(rules, histories, st.lists(st.floats(-0.2, 0.2), min_size=5, max_size=25), logs)
def test_only_differences_count(rule: Rule, history: History, losses: list[float], by: float) -> None:
    assume(all(abs(statistics.median(losses) - bound) > 1e-6 for bound in (LN_1_5, _margin(rule, history, losses))))
    here = rule.confirm(history, [history.center + loss for loss in losses])
    there = rule.confirm(replace(history, center=by), [by + loss for loss in losses])
    assert there.regressed is here.regressed
    assert there.loss == pytest.approx(here.loss, abs=1e-9)


def _margin(rule: Rule, history: History, ys: list[float]) -> float:
    found = rule.confirm(history, ys)
    return found.upper - found.loss


@given(rules, histories, st.lists(st.floats(-0.2, 0.2), min_size=5, max_size=25), st.floats(0, 1), st.integers(1, 1000))
def test_worse_launches_and_fewer_checks_acquit_nobody(
    rule: Rule, history: History, losses: list[float], worse: float, more: int
) -> None:
    ys = [history.center + loss for loss in losses]
    if rule.confirm(history, ys).regressed:
        assert rule.confirm(history, [y + worse for y in ys]).regressed
    if replace(rule, checks=rule.checks + more).confirm(history, ys).regressed:
        assert rule.confirm(history, ys).regressed


@given(rules, histories)
def test_what_is_to_be_found_is_confirmed_by_the_launches_it_needs(rule: Rule, history: History) -> None:
    if (k := rule.launches(history)) is not None:
        assert rule.confirm(history, [history.center + LN_5] * k).regressed
        assert not rule.confirm(history, [history.center] * k).regressed


@pytest.mark.parametrize(
    ("ys", "message"),
    [
        ([0.1] * 4, "ys holds 4 launches, expected at least 5: run as many launches as Rule.rounds says"),
        ([0.1] * 5 + [math.nan], "ys holds nan, expected finite logarithms: check the measurement"),
    ],
)
def test_too_few_launches_confirm_nothing(ys: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        SUITE.confirm(STEADY, ys)


# The other direction


def test_an_improvement_by_hand() -> None:
    margin = T * 0.01 * math.sqrt(math.pi / 2 * (1 / 10 + 1))
    noisy = Rule(Policy(), checks=100, prior=0.01)
    assert not noisy.improved(scattered(10, 0.0, 0.01), -margin + 1e-5)
    assert noisy.improved(scattered(10, 0.0, 0.01), -margin - 1e-5)
    assert not SUITE.improved(STEADY, -LN_5 + 1e-5)
    assert SUITE.improved(STEADY, -LN_5 - 1e-5)
    # Whoever lets larger losses pass is told of such gains all the same; whoever looks closer, of smaller ones.
    assert replace(SUITE, policy=Policy(detect=0.5)).improved(STEADY, -LN_5 - 1e-5)
    closer = replace(SUITE, policy=Policy(detect=0.04))
    assert closer.improved(STEADY, -math.log(1.04) - 1e-5)
    assert not closer.improved(STEADY, -math.log(1.04) + 1e-5)


def test_what_the_machine_explains_by_hand() -> None:
    alarm = max(math.log(1.015), T * 0.005 * math.sqrt(math.pi / 2 * (1 / 10 + 1 / 5)))
    assert SUITE.alarm(STEADY, 5) == pytest.approx(alarm)
    assert SUITE.explains(0.04, 0.06 + alarm - 1e-6, STEADY, 5)
    assert not SUITE.explains(0.04, 0.06 + alarm + 1e-6, STEADY, 5)
    assert not SUITE.explains(-0.04, -0.1, STEADY, 5)
    assert not SUITE.explains(0.0, 0.0, STEADY, 5)


def test_a_control_that_moved_by_hand() -> None:
    for k in (1, 3):
        margin = T * 0.005 * math.sqrt(math.pi / 2 * (1 / 10 + 1 / k))
        for way in (-1, 1):
            rest = [9.9 * way, -9.9 * way][: k - 1]  # the median counts
            assert not SUITE.moved(STEADY, [way * (margin - 1e-5), *rest])
            assert SUITE.moved(STEADY, [way * (margin + 1e-5), *rest])
    blind = Rule(Policy(), 1, 0.0, 0.0)
    assert not blind.moved(scattered(1, 0.0, 0.0), [1.0])  # of one launch no spread is known


@given(rules, histories, logs)
def test_an_improvement_mirrors_a_regression(rule: Rule, history: History, loss: float) -> None:
    """One launch that is better by as much as would be a regression, had it been worse k times, may be chance."""
    if rule.improved(history, history.center - loss):
        assert loss > 0
        assert rule.confirm(history, [history.center + loss] * 5).regressed
