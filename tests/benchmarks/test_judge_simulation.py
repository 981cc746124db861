"""The pieces of the simulation: its draws, the rules of others on figures by hand, what it counts and prints."""

from __future__ import annotations

import argparse
import math

import numpy as np
import pytest

from benchmarks.judge_simulation import (
    CHECKS,
    OURS,
    Judged,
    Setting,
    Tally,
    at_least_1,
    chunk,
    comparison,
    criterion,
    judged,
    launches,
    megatron_golden,
    megatron_rerun,
    pytest_benchmark,
    reframe,
    sample_sd,
    sigmas,
    simulated,
    suite,
    table,
    tally,
    targets,
    verdicts_of_others,
    wilson,
)
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.rule import Policy, Rule

HERE = Setting("normal", 0.010, 20)
THERE = Setting("heavy", 0.015, 10)
OLD = np.array([1.0, 1.0, 1.0, 2.0])


def drawn(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


# Draws


def test_the_spreads_of_checks_vary_around_sigma_b() -> None:
    found = sigmas(drawn(), 0.01, 200_000)
    # chi2(10) has the median 9.342, and 1 / chi2(10) the mean 1 / 8.
    assert np.median(found) == pytest.approx(0.01 * math.sqrt(10 / 9.342), rel=0.005)
    assert np.mean(found**2) == pytest.approx(0.01**2 * 10 / 8, rel=0.01)


def test_normal_launches_have_their_checks_spread() -> None:
    found = launches(drawn(), "normal", np.array([0.01, 0.03]), 100_000)
    assert found.shape == (2, 100_000)
    assert found.std(axis=1) == pytest.approx([0.01, 0.03], rel=0.01)
    assert found.mean(axis=1) == pytest.approx([0, 0], abs=0.0005)
    assert np.mean(np.abs(found[0]) > 0.0196) == pytest.approx(0.05, abs=0.003)


def test_heavy_launches_have_the_same_spread_but_for_the_bad_ones() -> None:
    found = launches(drawn(), "heavy", np.array([1e-9]), 200_000)[0]
    bad = found > 1e-6
    assert np.mean(bad) == pytest.approx(0.02, abs=0.0015)
    slowdowns = np.expm1(found[bad])
    assert (slowdowns.min(), slowdowns.max()) == (pytest.approx(0.05, abs=0.001), pytest.approx(0.25, abs=0.001))
    assert slowdowns.mean() == pytest.approx(0.15, abs=0.003)
    good = found[~bad] / 1e-9
    assert good.std() == pytest.approx(1, rel=0.02)
    # P(|t(5)| > 4) = 0.01032; in units of the standard deviation 4 is 4 / sqrt(5/3). Of normal ones 0.002 are there.
    assert np.mean(np.abs(good) > 4 / math.sqrt(5 / 3)) == pytest.approx(0.01032, abs=0.001)


def test_the_first_checks_of_a_launch_have_one_usual_speed_together() -> None:
    found = launches(drawn(), "modes", np.full(100, 1e-9), 50_000)
    for check in found[1:20]:
        assert check == pytest.approx(found[0], abs=1e-6)
    speeds, counts = np.unique(found[0].round(4), return_counts=True)
    assert speeds.tolist() == [-0.025, 0.0, 0.025]
    assert counts / 50_000 == pytest.approx([0.4, 0.3, 0.3], abs=0.01)
    assert np.abs(found[20:]).max() < 1e-6


def test_samples_within_a_launch_have_their_coefficient_of_variation() -> None:
    found = sample_sd(drawn(), np.full(100_000, 2.0))
    assert np.mean(found**2) == pytest.approx(0.02**2, rel=0.005)
    assert np.var(found**2) == pytest.approx(2 / 49 * 0.02**4, rel=0.03)


# The rules of others


def test_pytest_benchmark_fails_above_5_percent() -> None:
    new = np.array([1.0499, 1.0501, 0.5, 2.11])
    assert pytest_benchmark(OLD, new).tolist() == [False, True, False, True]


def test_reframe_fails_above_its_reference() -> None:
    new = np.array([1.0499, 1.0501, 0.5, 2.11])
    assert reframe(OLD, new).tolist() == [False, True, False, True]


def test_megatrons_golden_values_fail_in_both_directions() -> None:
    new = np.array([1.0499, 1.0501, 0.9499, 1.91])
    assert megatron_golden(OLD, new).tolist() == [False, True, True, False]
    assert megatron_golden(OLD, new).tolist() == (~np.isclose(new, OLD, rtol=0.05, atol=0)).tolist()


def test_megatrons_reruns_pass_when_one_passes() -> None:
    attempts = np.array([[1.03, 1.03, 1.03], [1.03, 1.03, 1.01], [1.01, 1.03, 1.03], [2.05, 2.05, 2.041]])
    assert megatron_rerun(OLD, attempts).tolist() == [True, False, False, True]
    assert megatron_rerun(OLD, attempts[:, :1]).tolist() == [True, True, False, True]


def test_criterion_fails_where_the_interval_is_above_its_threshold() -> None:
    # The error of the change is sqrt(2 * 0.01^2 / 50) = 0.002; 1.96 of them are 0.0039.
    sd = 0.01 * OLD
    new = np.array([1.0138, 1.0142, 0.9, 2.0])
    assert criterion(OLD, new, sd, sd).tolist() == [False, True, False, False]
    assert not criterion(OLD, new, sd * 4, sd * 4).any()


def test_others_see_the_first_launch_and_reframe_the_median() -> None:
    old = np.array([[1.0, 1.2, 1.2]])
    sd = np.array([0.01])

    def failing(new: float, reruns: float = 1.5) -> list[str]:
        fresh = np.array([[new] + [reruns] * 10])
        return [name for name, flags in verdicts_of_others(old, fresh, sd, sd).items() if flags[0]]

    one_with_one = [
        "pytest-benchmark mean:5%",
        "Megatron isclose 5 %",
        "Megatron 1.02x",
        "Megatron 1.02x, 10 reruns",
        "criterion",
    ]
    assert failing(1.0) == []
    assert failing(1.1) == one_with_one
    assert failing(1.1, reruns=1.0) == [name for name in one_with_one if "reruns" not in name]
    assert failing(1.3) == [one_with_one[0], "ReFrame +5 %", *one_with_one[1:]]


# This rule


def test_a_check_is_screened_by_the_first_launch_and_decided_by_the_next() -> None:
    rule, history = Rule(Policy(), CHECKS, 0.005), History(20, 0.0, 0.005, 11.4)
    slow, fine = [0.05] * 5, [0.0] * 5
    assert judged(rule, history, [0.0, *slow]) == Judged()
    assert judged(rule, history, [0.05, *fine]) == Judged(extra_launches=5)
    assert judged(rule, history, [0.05, *slow]) == Judged(regressed=True, extra_launches=5)
    assert judged(rule, history, [0.05, *slow, 9.0, 9.0]) == Judged(regressed=True, extra_launches=5)
    # The launch that was picked for being slow would make 3 of 5.
    assert judged(rule, history, [0.05, 0.05, 0.05, 0.0, 0.0, 0.0]) == Judged(extra_launches=5)
    wide, scattered = Rule(Policy(), CHECKS, 0.1), History(20, 0.0, 0.1, 11.4)
    assert judged(wide, scattered, [0.0, *slow * 5, 9.0]) == Judged(undecided=True, extra_launches=25)
    assert judged(wide, scattered, [0.0, *[1.0] * 25]) == Judged(regressed=True, extra_launches=25)
    unknown = Rule(Policy(), CHECKS, 0.0, prior_total=0.0)
    assert judged(unknown, History.of([0.0]), [0.0, *[1.0] * 25]) == Judged(undecided=True)


# What is counted


def test_a_suite_with_two_alarms_is_one_false_alarm() -> None:
    calm = [Judged(regressed=True, extra_launches=5), Judged(regressed=True, extra_launches=7), Judged(undecided=True)]
    slow = [Judged(regressed=True), Judged(undecided=True), Judged()]
    one = tally(calm, slow)
    assert one == Tally(1, 3, alarms=1, found=1, undecided=1, slow_undecided=1, extra_launches=12)
    both = one + tally([Judged()] * 3, [])
    assert both == Tally(2, 3, alarms=1, found=1, undecided=1, slow_undecided=1, extra_launches=12)
    assert both.false_alarms == 0.5
    assert both.power == pytest.approx(1 / 3)


def test_wilsons_interval() -> None:
    """Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998), table I."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert wilson(29, 29) == pytest.approx((0.8830, 1), abs=5e-5)


def test_a_suite_of_any_seed_is_the_same_again() -> None:
    assert suite(drawn(7), THERE, slow=True) == suite(drawn(7), THERE, slow=True)
    assert suite(drawn(7), THERE, slow=True) != suite(drawn(8), THERE, slow=True)


def test_one_suite_in_five_is_slowed_down() -> None:
    seeds = np.random.SeedSequence(1).spawn(6)
    found = chunk(HERE, seeds)
    for one in found.values():
        assert (one.suites, one.slow_checks) == (6, 2 * CHECKS)
    # A fixed bound of 5 % finds half of what is 5 % slower; this rule does better.
    assert 70 < found["pytest-benchmark mean:5%"].found < 130
    assert found[OURS].found > 180


def test_the_power_is_that_of_the_checks_without_modes() -> None:
    found = suite(drawn(), Setting("modes", 0.003, 10), slow=True)
    assert {one.slow_checks for one in found.values()} == {80}
    assert found[OURS].found > 75
    assert found[OURS].undecided > 0  # of the others


def test_the_seed_decides_and_not_the_processes() -> None:
    once = simulated([HERE, THERE], suites=3, seed=5)
    roots = np.random.SeedSequence(5).spawn(2)
    assert once == {setting: chunk(setting, root.spawn(3)) for setting, root in zip([HERE, THERE], roots, strict=True)}
    assert once != simulated([HERE, THERE], suites=3, seed=6)


# What is printed


def quiet(**counts: int) -> Tally:
    return Tally(**{"suites": 1000, "slow_checks": 20_000, "found": 19_600, **counts})


def test_the_table_has_a_row_for_each_setting() -> None:
    found = {HERE: {OURS: quiet(alarms=4, undecided=2000, slow_undecided=60, extra_launches=25_000)}}
    _, row = table(found).splitlines()
    assert " ".join(row.split()) == "normal 1.0% 20 0.0040 0.0016-0.0102 0.980 0.978-0.982 0.020, 0.003 0.25"


def test_the_comparison_has_a_column_for_each_spread() -> None:
    wider = Setting("normal", 0.015, 20)
    found = {
        setting: {OURS: quiet(), "x": quiet(alarms=alarms)}
        for setting, alarms in ((HERE, 50), (wider, 990), (THERE, 1), (Setting("heavy", 0.01, 20), 3))
    }
    lines = [line.split() for line in comparison(found, 20).splitlines()]
    assert lines[0] == ["normal,", "m", "=", "20", "1.0%", "1.5%"]
    assert lines[2] == ["x", "0.050", "/", "0.980", "0.990", "/", "0.980"]
    assert lines[3:] == [
        ["heavy,", "m", "=", "20", "1.0%"],
        ["this", "rule", "0.000", "/", "0.980"],
        ["x", "0.003", "/", "0.980"],
    ]


@pytest.mark.parametrize(("alarms", "met"), [(10, True), (11, False)])
def test_false_alarms_at_any_spread_break_the_promise(alarms: int, met: bool) -> None:
    found = {HERE: {OURS: quiet()}, THERE: {OURS: quiet(alarms=alarms)}}
    promise = targets(found)[0]
    assert (promise.met, promise.worst, promise.measured) == (met, THERE, alarms / 1000)
    assert str(promise).startswith(
        "met: with 10 launches or more at most 1%"
        if met
        else "NOT MET: with 10 launches or more at most 1% of the suites"
    )
    assert str(promise).endswith("heavy, sigma_b 1.5%, m = 10")


def test_of_five_launches_no_rate_of_false_alarms_is_promised() -> None:
    promise = targets({HERE: {OURS: quiet(alarms=1)}, Setting("modes", 0.003, 5): {OURS: quiet(alarms=30)}})[0]
    assert promise.met
    assert promise.name == "with 10 launches or more at most 1% of the suites raise a false alarm"


@pytest.mark.parametrize(("power", "met"), [(19_000, True), (18_999, False)])
def test_power_is_promised_up_to_1_percent_with_20_launches(power: int, met: bool) -> None:
    elsewhere = (Setting("normal", 0.010, 10), Setting("normal", 0.015, 20))
    found = {setting: {OURS: quiet(found=10_000)} for setting in elsewhere}
    found |= {HERE: {OURS: quiet(found=power)}, Setting("heavy", 0.005, 20): {OURS: quiet()}}
    promise = targets(found)[1]
    assert (promise.met, promise.worst, promise.measured) == (met, HERE, power / 20_000)


def test_at_least_one_suite() -> None:
    assert at_least_1("1") == 1
    with pytest.raises(argparse.ArgumentTypeError, match="must be at least 1, got 0"):
        at_least_1("0")
