"""The rule: a screen against the record, a race for suspects, and the environment's share."""

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.figures.student import upper_quantile
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.race import MOST_BLOCKS, Decision
from pytest_gpuperf.verdicts.rule import APART, Policy, Rule
from tests.baselines.by_hand import close, scattered

LN_5 = 0.04879016
LN_1_5 = 0.01488861
OPEN, CLEARED, ACCUSED = Decision

STEADY = scattered(10, 0.0, 0.005)  # 5.4 degrees of freedom
WIDE = scattered(10, 0.0, 0.03)
NEW = scattered(20, 0.0, 0.005, between=0.01, machines=4, known=False)
SUITE = Rule(Policy(), checks=100, spread_of_suite=0.005, dof_of_suite=1000.0)  # 6 more: 11.4

T_SCREEN, T_ALPHA = (upper_quantile(p, 11.4) for p in (0.02, 1e-4))

logs = st.floats(-20, 20)
spreads = st.floats(0, 0.05)
histories = st.builds(scattered, st.integers(1, 40), logs, spreads)
new_histories = st.builds(
    scattered, st.integers(4, 40), logs, spreads, between=spreads, machines=st.integers(1, 4), known=st.just(False)
)
rules = st.builds(
    Rule, st.just(Policy()), st.integers(1, 1000), spreads, st.floats(20, 1000), between_of_suite=st.floats(0, 0.02)
)


# The spreads


def test_the_pooled_spread_by_hand() -> None:
    # (6 * 0.005^2 + 5.4 * 0.02^2) / 11.4
    assert SUITE.spread(scattered(10, 0.0, 0.02)) == close(math.sqrt((0.00015 + 0.00216) / 11.4))
    assert SUITE.dof(scattered(10, 0.0, 0.02)) == close(11.4)
    assert SUITE.spread(scattered(10, 0.0, 0.001)) == 0.005


@given(rules, histories)
def test_the_pooled_spread_is_between_the_suites_and_its_own_but_for_the_floor(rule: Rule, history: History) -> None:
    low, high = sorted((rule.spread_of_suite, history.spread))
    assert max(low, 0.005) - 1e-12 <= rule.spread(history) <= max(high, 0.005) + 1e-12


def test_a_suites_spread_is_that_of_its_usual_figure() -> None:
    rule = Rule.of(Policy(), [STEADY, WIDE, WIDE, scattered(1, 0.0, 0.0)], 7)
    assert (rule.spread_of_suite, rule.dof_of_suite, rule.checks) == (0.03, close(3 * 5.4), 7)
    assert rule.spread(scattered(1, 0.0, 0.0)) == close(0.03)  # nothing of its own
    assert Rule.of(Policy(), [], 7) == Rule(Policy(), 7)


def test_a_suite_of_one_figure_does_not_count_its_spread_twice() -> None:
    alone = Rule.of(Policy(), [WIDE], 1)
    assert (alone.dof(WIDE), alone.spread(WIDE)) == (close(5.4), close(0.03))
    assert Rule.of(Policy(), [WIDE, STEADY], 2).dof(WIDE) == close(10.8)
    assert Rule.of(Policy(), [WIDE, STEADY, STEADY], 3).dof(WIDE) == close(11.4)


def test_the_spread_between_machines_by_hand() -> None:
    rule = Rule.of(Policy(), [NEW, replace(NEW, between=0.0), replace(NEW, known=True, between=0.0), STEADY], 4)
    # 25 / 27 of the third power, of 4 machines: half of their variances are below 0.794 of what they estimate.
    suite = 0.01**2 / 2 / (25 / 27) ** 3
    assert rule.between_of_suite == close(math.sqrt(suite))
    # 3 machines more than one
    assert rule.between(NEW) == close(math.sqrt((4 * suite + 0.0003) / 7))
    assert rule.between(replace(NEW, known=True)) == 0.0
    # The record has one machine: what is usual, or what was measured elsewhere.
    lone = scattered(5, 0.0, 0.005, known=False)
    assert rule.between(lone) == rule.between_of_suite
    assert Rule.of(Policy(), [lone], 1).between(lone) == 0.006


def test_figures_that_differ_between_machines_hide_no_loss_of_others() -> None:
    """Sockets, disks and hosts do by 50 %, links and kernels by 1 %."""
    steady = scattered(5, 0.0, 0.004, between=0.0, machines=3, known=False)
    wild = replace(steady, between=0.5)
    alone, among = (Rule.of(Policy(), found, 100) for found in ([steady] * 6, [steady] * 6 + [wild] * 4))
    assert among.between_of_suite == alone.between_of_suite == 0.006
    assert among.find_smallest_slowdown(steady) == alone.find_smallest_slowdown(steady) < 0.055
    assert among.find_smallest_slowdown(wild) > 0.3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"checks": 0}, "rule checks is 0, expected a whole number of at least 1"),
        ({"checks": True}, "rule checks is True, expected a whole number of at least 1"),
        ({"spread_of_suite": -0.01}, r"rule spread_of_suite is -0\.01, expected a finite number of at least 0"),
        ({"dof_of_suite": math.nan}, "rule dof_of_suite is nan, expected a finite number of at least 0"),
        ({"between_of_suite": math.inf}, "rule between_of_suite is inf, expected a finite number of at least 0"),
    ],
)
def test_a_suite_without_a_meaning_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Rule(**{"policy": Policy(), "checks": 1, **fields})


# The screen


def test_the_screen_by_hand() -> None:
    error = 0.005 * math.sqrt(1 + math.pi / 20)
    bound = LN_5 - T_SCREEN * error
    assert not SUITE.suspects(STEADY, bound - 1e-6)
    assert SUITE.suspects(STEADY, bound + 1e-6)
    assert SUITE.find_smallest_slowdown(STEADY) == close(math.expm1(bound + 1.644854 * error))
    assert SUITE.find_smallest_slowdown(STEADY) < 0.05


def test_a_wide_figure_is_suspect_beyond_its_own_error_only() -> None:
    wide = replace(SUITE, spread_of_suite=0.03)
    error = 0.03 * math.sqrt(1 + math.pi / 20)
    assert not wide.suspects(WIDE, 1.75 * error - 1e-6)
    assert wide.suspects(WIDE, 1.75 * error + 1e-6)
    assert wide.find_smallest_slowdown(WIDE) == close(math.expm1((1.75 + 1.644854) * error))


def test_on_new_gpus_the_machines_spread_counts() -> None:
    rule = replace(SUITE, between_of_suite=0.01)
    within, between = 0.005**2 * (1 + math.pi / 40), 0.01**2 * (1 + 1 / 4)
    error = math.sqrt(within + between)
    bound = max(LN_5 - upper_quantile(0.02, 17.4) * error, 1.75 * error)
    assert not rule.suspects(NEW, bound - 1e-6)
    assert rule.suspects(NEW, bound + 1e-6)


def test_without_any_spread_nothing_is_known() -> None:
    one = scattered(1, 0.0, 0.0)
    blind = Rule.of(Policy(), [one], 1)
    assert blind.suspects(one, -1.0)
    assert blind.find_smallest_slowdown(one) == math.inf
    assert not blind.is_improved(one, -1.0)
    assert blind.compare_with_record(one, [1.0] * 5).decision is OPEN
    assert blind.compare_with_record(one, [0.0] * 5).decision is OPEN
    assert blind.environment(one, [1.0] * 5).decision is CLEARED
    assert blind.environment(one, [1.0] * 5).upper == math.inf
    assert blind.race(None, [0.0, 0.0] * 3, [0.05, 0.05] * 3).decision is ACCUSED


def test_a_spread_beyond_all_bounds_lets_nothing_be_seen() -> None:
    assert Rule(Policy(), 100, 500.0, 1000.0).find_smallest_slowdown(scattered(5, 0.0, 500.0)) == math.inf


@given(rules, histories | new_histories, logs, st.floats(0, 5))
def test_a_worse_launch_is_no_less_suspect(rule: Rule, history: History, y: float, more: float) -> None:
    assert not rule.suspects(history, y) or rule.suspects(history, y + more)


@given(st.floats(0.0, 0.01), st.integers(2, 40))
def test_the_screen_passes_few_slow_programs(spread: float, launches: int) -> None:
    """One launch of a program that is slower by 5 % is normal around ln 1.05."""
    rule = Rule(Policy(), 100, max(spread, 0.005), 1000.0)
    history = scattered(launches, 0.0, max(spread, 0.005))
    one = statistics.NormalDist(LN_5, rule.spread(history) * math.sqrt(1 + math.pi / 2 / launches))
    assert rule.suspects(history, one.inv_cdf(0.03))


# Against the record


def test_what_clears_a_suspect_and_what_does_not() -> None:
    # v = pi / 20; one launch at the centre: ln 1.05^2 / 2 / (0.005^2 * 1.157080) = 41, which is clipped.
    one = SUITE.compare_with_record(STEADY, [0.0])
    assert (one.decision, one.evidence) == (OPEN, close(0.1))
    assert SUITE.compare_with_record(STEADY, [0.0, 0.0]).decision is CLEARED
    assert SUITE.compare_with_record(STEADY, [0.04, 0.0]).decision is OPEN
    assert SUITE.compare_with_record(STEADY, [0.04, 0.0, 0.0, 0.0]).decision is CLEARED


def test_what_launches_show_against_the_record_by_hand() -> None:
    found = SUITE.compare_with_record(replace(STEADY, center=2.0), [2.03, 2.03, 2.05, 2.04])
    # 0.03, 0.03, 0.05, 0.04, and by two 0.03, 0.04, 0.035, 0.04, 0.035, 0.045
    error = 0.005 * math.sqrt(math.pi / 3 / 4 + math.pi / 20)
    margin = upper_quantile(0.025, 11.4) * error
    assert (found.loss, found.upper - found.loss, found.loss - found.lower) == (
        close(0.0375),
        close(margin),
        close(margin),
    )


def test_an_accusation_against_the_record_needs_as_much_as_the_suite_is_large() -> None:
    four = [0.05] * 4
    assert SUITE.compare_with_record(STEADY, four).evidence == 10_000.0
    assert SUITE.compare_with_record(STEADY, four).decision is ACCUSED
    assert replace(SUITE, checks=101).compare_with_record(STEADY, four).decision is OPEN


def test_on_a_new_machine_the_record_accuses_what_the_machine_does_not_explain() -> None:
    rule = replace(SUITE, between_of_suite=0.01)
    assert rule.compare_with_record(NEW, [0.05] * 26).decision is OPEN
    assert rule.compare_with_record(NEW, [0.3] * 26).decision is ACCUSED
    assert SUITE.compare_with_record(replace(NEW, known=True), [0.05] * 26).decision is ACCUSED


def test_without_a_launch_there_is_nothing_to_judge() -> None:
    with pytest.raises(
        ValueError, match=r"^ys holds 0 launches, expected at least 1: pass the screening launch first$"
    ):
        SUITE.compare_with_record(STEADY, [])
    with pytest.raises(ValueError, match=r"^a holds 0 launches, expected at least 1: race the baseline's commit first"):
        SUITE.environment(STEADY, [])


# The race


def test_a_race_by_hand() -> None:
    a, b = [0.0, 0.01, 0.0, 0.01], [0.03, 0.04, 0.03, 0.04]
    found = SUITE.race(WIDE, a, b)
    # Pooled record: (6 * 0.005^2 + 5.4 * 0.03^2) / 11.4 = 0.000439474, worth 4. The race's own: eight distances of
    # 0.005 sqrt(4/3), of which one is left out, worth 0.8 (7 - 2) = 4.
    seven_eighths = 1 - 2 * 1.534121 * 0.122989 / 0.875
    spread = math.sqrt((0.000439474 + 0.005**2 * 4 / 3 / seven_eighths) / 2)
    assert found.evidence == pytest.approx(math.exp(4 * LN_5 * (0.03 - LN_5 / 2) / (2 * spread**2)), rel=1e-4)
    margin = upper_quantile(0.025, 8.0) * spread * math.sqrt(2 * math.pi / 3 / 4)
    assert found.loss == close(0.03)
    assert found.upper - found.loss == pytest.approx(margin, rel=1e-4)
    assert found.decision is OPEN


def test_a_figure_that_scatters_widely_is_decided_by_losses_that_it_can_show() -> None:
    history = scattered(10, 0.0, 0.15)
    rule = Rule.of(Policy(), [history], 100)
    noise = [0.15, -0.1, -0.15, 0.1]
    a, b = (noise * 4)[: 2 * MOST_BLOCKS], (noise[::-1] * 4)[: 2 * MOST_BLOCKS]

    def blocks(loss: float, apart: float) -> tuple[int, Decision]:
        for count in range(1, MOST_BLOCKS + 1):
            found = rule.race(history, a[: 2 * count], [value + loss for value in b[: 2 * count]], apart=apart)
            if found.decision is not OPEN:
                return count, found.decision
        return MOST_BLOCKS, OPEN

    assert blocks(0.0, 0.0) == (MOST_BLOCKS, OPEN)  # 5 % are too little for it
    count, decision = blocks(0.0, APART)
    assert (count < MOST_BLOCKS, decision) == (True, CLEARED)
    assert blocks(0.9, APART)[1] is ACCUSED


def test_the_record_clears_a_figure_that_scatters_widely_of_losses_that_it_can_show() -> None:
    history = scattered(10, 0.0, 0.15)
    rule = Rule.of(Policy(), [history], 100)
    assert rule.compare_with_record(history, [0.1, -0.1] * 3).decision is CLEARED
    assert rule.compare_with_record(history, [3.0] * 12).decision is ACCUSED


def test_two_blocks_accuse_and_one_clears_a_steady_figure() -> None:
    same, slow = [0.0, 0.001], [0.05, 0.051]
    assert SUITE.race(STEADY, same, same).decision is CLEARED
    assert SUITE.race(STEADY, same, slow).decision is OPEN
    assert SUITE.race(STEADY, same * 2, slow * 2).decision is ACCUSED
    assert replace(SUITE, checks=101).race(STEADY, same * 2, slow * 2).decision is OPEN
    assert SUITE.race(STEADY, slow, same).decision is CLEARED


def test_fewer_than_three_launches_accuse_nobody_however_clear_they_are() -> None:
    alone = replace(SUITE, checks=1)
    found = alone.race(STEADY, [0.0] * 2, [0.2] * 2)
    assert found.evidence >= 100  # enough for one figure, if the launches had not one parent process or two
    assert found.decision is OPEN
    assert alone.race(STEADY, [0.0] * 4, [0.2] * 4).decision is ACCUSED
    assert alone.compare_with_record(STEADY, [0.2] * 2).evidence >= 100
    assert alone.compare_with_record(STEADY, [0.2] * 2).decision is OPEN
    assert alone.compare_with_record(STEADY, [0.2] * 3).decision is ACCUSED


def test_a_slowdown_by_half_of_detect_stays_open() -> None:
    found = SUITE.race(STEADY, [0.0] * 14, [LN_5 / 2] * 14)
    assert found.decision is OPEN
    assert found.evidence == pytest.approx(1.0, rel=1e-3)


def test_a_steady_figure_has_not_regressed_by_less_than_minimum_effect() -> None:
    strict = Rule(Policy(minimum_slowdown=0.025, minimum_effect=0.02), 1, 0.005, 1000.0)
    a, b = [0.0] * 14, [math.log(1.0199)] * 14
    assert strict.race(STEADY, a, b).evidence > 1000
    assert strict.race(STEADY, a, b).decision is OPEN
    assert strict.race(STEADY, a, [math.log(1.021)] * 14).decision is ACCUSED


def test_a_machine_that_is_noisier_today_accuses_nobody() -> None:
    # All pairs say 5 %, but the launches scatter by far more: the record's spread alone would accuse.
    a, b = [0.0, 0.15, -0.15, 0.1], [0.05, 0.2, -0.1, 0.15]
    noisy = SUITE.race(STEADY, a, b)
    assert noisy.decision is OPEN
    assert noisy.lower < 0 < noisy.upper
    calm = SUITE.race(STEADY, [0.0, 0.0, 0.001, 0.001], [0.05, 0.05, 0.051, 0.051])
    assert calm.decision is ACCUSED


def test_without_a_record_a_race_knows_its_own_spread_only() -> None:
    rule = Rule.of(Policy(), [], 100)
    noisy, slower = [0.0, 0.02, -0.02, 0.01], [0.05, 0.07, 0.03, 0.06]
    two = rule.race(None, noisy, slower)
    assert two.decision is OPEN
    assert two.loss - two.lower == pytest.approx(two.upper - two.loss)
    assert rule.race(None, noisy * 3, slower * 3).decision is ACCUSED
    assert rule.race(None, noisy, noisy).decision is CLEARED
    # The floor is what it knows before.
    assert rule.race(None, [0.0] * 2, [0.0] * 2).decision is CLEARED
    assert rule.race(None, [0.0] * 4, [0.05] * 4).decision is OPEN
    assert rule.race(None, [0.0] * 6, [0.05] * 6).decision is ACCUSED
    # A record of one launch knows no more.
    one = scattered(1, 0.0, 0.0)
    assert Rule.of(Policy(), [one], 100).race(one, noisy, slower) == rule.race(None, noisy, slower)


@given(rules, histories | st.none(), st.lists(st.floats(-0.1, 0.1), min_size=4, max_size=4), logs)
def test_only_differences_count(rule: Rule, history: History | None, losses: list[float], by: float) -> None:
    a, b = [0.0, 0.001, 0.0, 0.002], losses
    here, there = rule.race(history, a, b), rule.race(history, [by + y for y in a], [by + y for y in b])
    assert there.evidence == pytest.approx(here.evidence, rel=1e-6)
    assert there.loss == pytest.approx(here.loss, abs=1e-9)


@given(rules, histories, st.lists(st.floats(-0.2, 0.2), min_size=4, max_size=4), st.integers(1, 1000))
def test_fewer_figures_acquit_nobody(rule: Rule, history: History, b: list[float], more: int) -> None:
    a, larger = [0.0, 0.001, 0.0, 0.002], replace(rule, checks=rule.checks + more)
    if larger.race(history, a, b).decision is ACCUSED:
        assert rule.race(history, a, b).decision is ACCUSED


# The environment, and the other direction


def test_the_environment_by_hand() -> None:
    a = [0.0, 0.001, 0.002, 0.003]
    error = 0.005 * math.sqrt(1 / 2 + math.pi / 20)  # four launches of one run count for two
    bound = T_ALPHA * error
    assert bound > LN_1_5
    for more, decision in ((-1e-5, CLEARED), (1e-5, ACCUSED)):
        found = SUITE.environment(STEADY, [y - 0.0015 + bound + more for y in a])
        assert found.decision is decision
        assert found.upper - found.loss == close(upper_quantile(0.025, 11.4) * error)
    many = replace(SUITE, checks=1)
    assert many.environment(scattered(1000, 0.0, 0.005), [0.0148] * 14).decision is CLEARED
    assert many.environment(scattered(1000, 0.0, 0.005), [0.0150] * 14).decision is ACCUSED


def test_the_machines_spread_is_no_environment() -> None:
    assert SUITE.environment(replace(NEW, known=True), [0.04] * 4).decision is ACCUSED
    assert replace(SUITE, between_of_suite=0.01).environment(NEW, [0.04] * 4).decision is CLEARED
    assert replace(SUITE, between_of_suite=0.01).environment(NEW, [0.3] * 4).decision is ACCUSED


def test_launches_that_scatter_wider_today_prove_less_of_the_environment() -> None:
    calm, noisy = [0.03, 0.031] * 7, [-0.02, 0.08] * 7
    assert SUITE.environment(STEADY, calm).decision is ACCUSED
    assert SUITE.environment(STEADY, noisy).decision is CLEARED


def test_an_improvement_by_hand() -> None:
    margin = T_ALPHA * 0.01 * math.sqrt(1 + math.pi / 20)
    noisy = replace(SUITE, spread_of_suite=0.01)
    history = scattered(10, 0.0, 0.01)
    assert not noisy.is_improved(history, -margin + 1e-5)
    assert noisy.is_improved(history, -margin - 1e-5)
    assert not SUITE.is_improved(STEADY, -LN_5 + 1e-5)
    assert SUITE.is_improved(STEADY, -LN_5 - 1e-5)
    # Whoever lets larger losses pass is told of such gains all the same; whoever looks closer, of smaller ones.
    assert replace(SUITE, policy=Policy(minimum_slowdown=0.5)).is_improved(STEADY, -LN_5 - 1e-5)
    closer = replace(SUITE, policy=Policy(minimum_slowdown=0.04))
    assert closer.is_improved(STEADY, -math.log(1.04) - 1e-5)
    assert not closer.is_improved(STEADY, -math.log(1.04) + 1e-5)
