"""The pieces of the simulation: its draws, the way of a figure, the rules of others, what it counts and prints."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import judge_simulation
from benchmarks.judge_simulation import (
    BEFORE,
    Promise,
    Row,
    Tally,
    at_least_1,
    chunk,
    comparison,
    main,
    promises,
    rows,
    simulated,
    suite,
    table,
    wilson,
)
from benchmarks.simulated.before import Before, known
from benchmarks.simulated.course import Course, against_record, launches_of, raced_without_record, taken
from benchmarks.simulated.noise import TODAY, Noise, drawn, split
from benchmarks.simulated.others import all_of_5_reruns, megatron, once, welch
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.rule import Policy, Rule
from tests.baselines.by_hand import scattered

PLAIN = Noise("plain")
HERE = Row(PLAIN)
LN_5 = math.log(1.05)


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


# Draws


def test_launches_have_their_checks_spread() -> None:
    made = drawn(rng(), Noise("half", 0.002, wide=0.03), 4, 20_000)
    assert made.record["machine 0"].std(axis=1) == pytest.approx([0.002, 0.03, 0.002, 0.03], rel=0.05)
    assert made.today.shape == (4, TODAY)
    assert made.here == "machine 0"


def test_launches_of_a_run_are_correlated_and_runs_are_not() -> None:
    logs = drawn(rng(), Noise("AR", correlation=0.9), 2, 20_000).record["machine 0"][0]
    runs = logs.reshape(-1, 5)
    assert np.corrcoef(runs[:, 0], runs[:, 1])[0, 1] == pytest.approx(0.9, abs=0.02)
    assert np.corrcoef(runs[:, 0], runs[:, 2])[0, 1] == pytest.approx(0.81, abs=0.03)
    assert abs(np.corrcoef(runs[:-1, 4], runs[1:, 0])[0, 1]) < 0.05
    assert logs.std() == pytest.approx(0.01, rel=0.03)


def test_figures_of_a_launch_share_half_of_their_variance() -> None:
    logs = drawn(rng(), Noise("shared", shared=True), 2, 20_000).record["machine 0"]
    assert np.corrcoef(logs[0], logs[1])[0, 1] == pytest.approx(0.5, abs=0.03)
    assert logs.std() == pytest.approx(0.01, rel=0.03)


@pytest.mark.parametrize("tails", ["check", "launch"])
def test_5_percent_of_launches_are_slower(tails: str) -> None:
    logs = drawn(rng(), Noise("tails", 1e-9, tails=tails), 2, 20_000).record["machine 0"]
    bad = logs > 1e-6
    assert bad.mean() == pytest.approx(0.05, abs=0.005)
    assert bool((bad[0] == bad[1]).all()) is (tails == "launch")
    assert np.expm1(logs[bad]).min() == pytest.approx(0.03, abs=0.001)
    assert np.expm1(logs[bad]).max() == pytest.approx(0.10, abs=0.001)


def test_machines_differ_and_today_is_on_one_of_them_or_on_another() -> None:
    machines = Noise("machines", 1e-9, machines=0.01)
    owned = drawn(rng(), machines, 1000, 10)
    assert (owned.here, [logs.shape[1] for logs in owned.record.values()]) == ("machine 0", [5, 2, 2, 1])
    centers = [logs.mean(axis=1) for logs in owned.record.values()]
    assert owned.today.mean(axis=1) == pytest.approx(centers[0], abs=1e-6)
    assert np.std(centers[1] - centers[0]) == pytest.approx(0.01 * math.sqrt(2), rel=0.1)
    new = drawn(rng(), Noise("new", 1e-9, machines=0.01, known=False), 1000, 10)
    assert (new.here, [logs.shape[1] for logs in new.record.values()]) == ("another", [3, 3, 2, 2])
    offsets = [np.abs(new.today.mean(axis=1) - logs.mean(axis=1)).mean() for logs in new.record.values()]
    assert min(offsets) > 0.005


def test_the_first_figures_have_two_speeds_by_machine() -> None:
    new = drawn(rng(), Noise("modes", 1e-9, modes=True, known=False), 100, 10)
    apart = new.today[:, 0] - new.record["machine 0"][:, 0]
    assert {float(abs(step).round(4)) for step in apart[:20]} == {0.0, 0.025}
    assert np.abs(apart[20:]).max() < 1e-6


def test_today_may_be_slower_and_noisier() -> None:
    made = drawn(rng(), Noise("today", 0.001, drift=0.03, today=3.0), 1000, 5)
    assert made.today.mean() == pytest.approx(0.03, abs=0.0005)
    assert made.today.std() == pytest.approx(0.003, rel=0.03)
    assert made.everything.std() == pytest.approx(0.001, rel=0.05)


@pytest.mark.parametrize(
    ("launches", "owned", "counts"),
    [(5, False, [2, 1, 1, 1]), (25, False, [7, 6, 6, 6]), (25, True, [5, 7, 7, 6]), (5, True, [5])],
)
def test_launches_are_split_among_machines(launches: int, owned: bool, counts: list[int]) -> None:
    assert split(launches, Noise("machines", machines=0.01, known=owned)) == counts
    assert split(launches, PLAIN) == [launches]


# A figure's way through the rule

RULE = Rule(Policy(), 100, 0.005, 1000.0)
STEADY = scattered(10, 0.0, 0.005)
CALM = [0.0, 0.001] * (TODAY // 2)


def test_a_calm_figure_takes_no_launch() -> None:
    assert taken(RULE, STEADY, CALM) == Course()


def test_a_bad_launch_is_cleared_by_the_next_ones() -> None:
    assert taken(RULE, STEADY, [0.045, *CALM[1:]]) == Course(suspect=True, clearing=3)


def test_a_figure_on_new_gpus_races_unless_two_launches_clear_it() -> None:
    new = scattered(10, 0.0, 0.005, between=0.0, machines=2, known=False)
    assert taken(RULE, new, [0.045, *CALM[1:]]) == Course(suspect=True, clearing=1)
    assert taken(RULE, new, [0.045] * 3 + CALM[3:]) == Course(suspect=True, clearing=2, blocks=1)
    assert taken(RULE, new, CALM, environment=0.8) == Course(True, environment=True, gross=True, clearing=2, blocks=1)


def test_what_is_only_shown_takes_no_launch_unless_it_is_halved() -> None:
    new = scattered(10, 0.0, 0.005, between=0.0, machines=2, known=False)
    noisy = scattered(10, 0.0, 0.1)
    for history, host in ((new, True), (noisy, False)):
        assert taken(RULE, history, CALM, code=0.2, host=host) == Course()
    assert taken(RULE, new, CALM, code=0.8, host=True).regressed


def test_slower_code_and_a_slower_machine_are_told_apart() -> None:
    assert taken(RULE, STEADY, CALM, code=LN_5) == Course(True, regressed=True, clearing=3, blocks=2)
    assert taken(RULE, STEADY, CALM, environment=LN_5) == Course(True, environment=True, clearing=3, blocks=1)
    assert taken(RULE, STEADY, CALM, LN_5, LN_5) == Course(True, True, True, clearing=3, blocks=2)


def test_a_figure_that_nothing_decides_is_undecided() -> None:
    half = taken(RULE, STEADY, [0.045] * 4 + [0.0] * 28, code=LN_5 / 2)
    assert half == Course(True, undecided=True, clearing=3, blocks=7)


def test_a_race_without_a_record_and_a_judgement_without_a_race() -> None:
    assert raced_without_record(RULE, CALM) == Course(True, blocks=1)
    assert raced_without_record(RULE, CALM, LN_5) == Course(True, regressed=True, blocks=3)
    assert against_record(RULE, STEADY, CALM) == Course()
    assert against_record(RULE, STEADY, CALM, LN_5) == Course(True, regressed=True, clearing=3)
    assert against_record(RULE, STEADY, [0.045, *CALM[1:]]) == Course(True, clearing=3)
    assert against_record(RULE, STEADY, [0.045] + [LN_5 / 2] * 31) == Course(True, undecided=True, clearing=25)


def test_the_suspects_of_a_run_share_its_launches() -> None:
    assert launches_of([]) == 0
    assert launches_of([Course(True, clearing=2), Course(True, clearing=3, blocks=1), Course(True, blocks=2)]) == 11


# Other rules


def flags(rule: object, record: Sequence[float], *today: float) -> bool:
    found = rule(np.array([record]), np.array([[*today, *[0.0] * (11 - len(today))]]))  # type: ignore[operator]
    return bool(found[0])


def test_simple_rules_by_hand() -> None:
    assert flags(once, [0.0, 0.0, 9.0], 0.049)
    assert not flags(once, [0.0, 0.0, 9.0], 0.0487)
    assert flags(all_of_5_reruns, [0.0], *[0.049] * 6)
    assert not flags(all_of_5_reruns, [0.0], *[0.049] * 5)
    assert flags(megatron, [0.0, 9.0], *[0.0199] * 11)
    assert not flags(megatron, [0.0, 9.0], *[0.0199] * 10)


def test_welch_by_hand() -> None:
    record, fresh = [-0.01, 0.0, 0.01] * 3, [-0.01, 0.0, 0.01, 0.0, 0.0]
    # Variances 0.000075 / 9 and 0.00005 / 5; 11 degrees of freedom, t(0.01) = 2.72: 1.16 %, which is less than 1.5 %.
    assert not flags(welch, record, *[y + 0.0148 for y in fresh])
    assert flags(welch, record, *[y + 0.0150 for y in fresh])
    wide = [4 * y for y in fresh]
    assert not flags(welch, record, *[y + 0.04 for y in wide])


def test_the_rule_before_confirms_by_the_median_of_fresh_launches() -> None:
    records = [known({"a": [0.01 * ((7 * i + check) % 10 - 4.5) / 4 for i in range(10)]}, "a") for check in range(20)]
    rule = Before.of(records)
    assert rule.judged(records[0], [0.0] * 26) == (False, 0)
    regressed, launches = rule.judged(records[0], [0.06] * 26)
    assert regressed
    assert 5 <= launches <= 25
    assert rule.judged(records[0], [0.06] + [0.0] * 25) == (False, launches)


def test_the_rule_before_takes_the_launches_of_these_very_gpus() -> None:
    machines = {"a": [0.0, 0.001, 0.002, 0.003, 0.004], "b": [1.0, 1.03, 1.06, 1.09, 1.12]}
    assert known(machines, "a").center == 0.002
    assert known(machines, "c").launches == 10
    assert known(machines, "b").spread > known(machines, "a").spread


# What is counted


def test_every_eighth_figure_is_slowed_in_turn() -> None:
    tallies = [suite(rng(), Row(Noise("quiet", 0.003)), index) for index in (0, 7, 8)]
    assert [one.slowed for one in tallies] == [13, 12, 13]
    assert suite(rng(), Row(PLAIN, checks=1), 3).slowed == 1
    for one in tallies:
        assert one.suites == 1
        assert one.alarms["code"] == one.screened == one.launches == 0
        assert one.found["5%"] == one.found[BEFORE] == one.slowed
        assert one.right == one.accused == Counter(code=one.slowed, environment=one.slowed, both=one.slowed)
        assert one.machine == one.slowed


def test_a_suite_of_any_seed_is_the_same_again() -> None:
    assert suite(rng(7), HERE, 0) == suite(rng(7), HERE, 0)
    assert suite(rng(7), HERE, 0) != suite(rng(8), HERE, 0)


def test_the_seed_decides_and_not_the_processes() -> None:
    small = [Row(PLAIN, checks=10), Row(PLAIN, 5, 10, "without record"), Row(PLAIN, checks=10, race="never")]
    done = simulated(small, suites=2, seed=5)
    roots = np.random.SeedSequence(5).spawn(3)
    for row, root in zip(small, roots, strict=True):
        assert done[row].suites == 20  # ten times as many
        whole = chunk(row, root.spawn(20), 0)
        assert done[row] == whole
    assert done != simulated(small, suites=2, seed=6)


def test_tallies_add_up() -> None:
    one = Tally(suites=1, launches=4, slowed=2, alarms=Counter(code=1), found=Counter({"5%": 2}))
    one.add(Tally(suites=3, slowed=2, alarms=Counter(code=0), right=Counter(code=1), accused=Counter(code=2)))
    assert (one.suites, one.launches, one.slowed) == (4, 4, 4)
    assert (one.false_alarms, one.power("5%"), one.told_apart("code")) == (0.25, 0.5, 0.5)
    assert math.isnan(Tally(suites=1).power("5%"))
    assert math.isnan(Tally(suites=1).told_apart("both"))


def test_wilsons_interval() -> None:
    """Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17 (1998), table I."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=5e-5)
    assert wilson(29, 29) == pytest.approx((0.8830, 1), abs=5e-5)


# What is promised and printed


def test_what_is_promised_of_a_row() -> None:
    promised = {str(row): row.promised for row in rows()}
    assert promised["independent 1.0%"] == promised["new machine, offsets 1 %"] == 0.95
    assert promised["correlated in a run, AR 0.9, 1 %"] == 0.80
    assert promised["tails of a check, 0.5 %"] == promised["tails of a launch, 0.5 %"] == 0.95
    for scattered_wider in (
        "tails of a check, 1 %",
        "half 0.2 %, half 3 %",
        "today 3 x noisier than 0.5 %",
        "independent 0.5%, not raced",
    ):
        assert promised[scattered_wider] == 0.0
    assert {row.launches for row in rows()} == {5, 10, 25}
    assert {row.checks for row in rows()} == {1, 10, 100, 500}


def full(**counts: int) -> Tally:
    tally = Tally(suites=1000, slowed=100, found=Counter({"5%": 95}))
    tally.accused = tally.right = Counter(code=100, environment=100, both=100)
    tally.alarms = Counter(code=counts.get("alarms", 10))
    tally.environment = counts.get("environment", 10)
    tally.found["5%"] = counts.get("found", 95)
    tally.right = Counter(code=counts.get("right", 95), environment=100, both=100)
    return tally


@pytest.mark.parametrize(
    ("counts", "broken"),
    [
        ({}, ""),
        ({"alarms": 11}, "runs without a false alarm 0.9890, least 0.99"),
        ({"found": 94}, "power at 5 % 0.9400, least 0.95"),
        ({"environment": 11}, "runs that accuse no environment 0.9890, least 0.99"),
        ({"right": 94}, "told apart, code 0.9400, least 0.95"),
    ],
)
def test_a_broken_promise_is_told(counts: dict[str, int], broken: str) -> None:
    told = [str(promise) for promise in promises({HERE: full(**counts)}) if not promise.kept]
    assert told == ([f"BROKEN: plain, m = 10: {broken}"] if broken else [])


def test_a_share_of_nothing_breaks_no_promise() -> None:
    assert Promise("row", "power", 0.95, math.nan).kept
    assert [promise.what for promise in promises({Row(Noise("wide", 0.03)): full()})] == [
        "runs without a false alarm",
        "runs that accuse no environment",
    ]


def test_the_tables() -> None:
    head, _, line = table({HERE: full()}).splitlines()
    assert "told apart" in head
    assert " ".join(line.split()).startswith("plain 10 0.010 (0.005-0.018) 0.010 0.000 0.000 0.950")
    lines = comparison({HERE: full(), Row(PLAIN, 5): full()}, 10).splitlines()
    assert len(lines) == 2
    assert " ".join(lines[1].split()).startswith("plain 0.010 / 0.950")


def test_the_whole_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = {HERE: full()}
    monkeypatch.setattr(judge_simulation, "simulated", lambda rows, suites, seed: found)
    file = tmp_path / "simulation.json"
    assert main(["--check", f"--json={file}"]) == 0
    assert "6 of 6 promises are kept" in capsys.readouterr().out
    assert json.loads(file.read_text())["rows"][0]["alarms"] == {"code": 10}
    found[HERE] = full(alarms=11)
    assert main([]) == 0
    assert main(["--check"]) == 1
    assert "5 of 6 promises are kept" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--rows=none such"])
    assert "no row has this word" in capsys.readouterr().err


def test_at_least_one_suite() -> None:
    assert at_least_1("1") == 1
    with pytest.raises(argparse.ArgumentTypeError, match="must be at least 1, got 0"):
        at_least_1("0")


def test_a_history_takes_a_simulated_record() -> None:
    made = drawn(rng(), Noise("machines", machines=0.01), 3, 10)
    history = History.of(made.machines(1), made.here)
    assert (history.known, history.launches, history.machines) == (True, 5, 4)
