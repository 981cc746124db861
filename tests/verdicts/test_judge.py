"""The judge: what screening makes of a figure, and what fresh launches make of a suspect."""

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.baselines.plain import plain, read
from pytest_gpuperf.baselines.schema import Baselines, MetricBaseline, TestBaseline
from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import KEY, TEST, baselines, launch, metric_baseline
from tests.verdicts.judged import LOOSE, LOOSER, ONCE, STEADY, WILD, confirmed, judge_of, verdict_of


@pytest.mark.parametrize(
    ("value", "stored", "outcome"),
    [
        (100.0, STEADY, Outcome.SAME),
        (97.0, STEADY, Outcome.SAME),
        (95.0, STEADY, Outcome.SUSPECT),
        (101.0, STEADY, Outcome.SAME),
        (104.9, STEADY, Outcome.SAME),
        (105.1, STEADY, Outcome.IMPROVED),
        (99.0, LOOSE, Outcome.SAME),
        (95.0, LOOSE, Outcome.SUSPECT),
        (110.0, LOOSE, Outcome.IMPROVED),
        (100.0, WILD, Outcome.SUSPECT),  # a loss of 5 % could hide in it
        (100.0, ONCE, Outcome.SUSPECT),  # nothing is known of its spread
    ],
)
def test_a_launch_is_screened(value: float, stored: MetricBaseline, outcome: Outcome) -> None:
    assert verdict_of(value, stored).outcome is outcome


@pytest.mark.parametrize(("value", "outcome"), [(105.0, Outcome.SUSPECT), (95.0, Outcome.IMPROVED)])
def test_a_time_is_worse_when_it_is_longer(value: float, outcome: Outcome) -> None:
    stored = replace(STEADY, unit="s", better="lower")
    assert verdict_of(value, stored, unit="s", better="lower").outcome is outcome


@given(st.floats(0.5, 2.0))
def test_a_time_and_the_throughput_made_from_it_have_one_verdict(slowdown: float) -> None:
    times = [1 + 1e-3 * (i - 4.5) for i in range(10)]
    by_time = verdict_of(slowdown, metric_baseline(*times, unit="s", better="lower"), unit="s", better="lower")
    by_rate = verdict_of(1 / slowdown, metric_baseline(*[1 / time for time in times]))
    assert by_time.outcome is by_rate.outcome
    assert by_time.change is not None
    assert by_rate.change is not None
    assert 1 - by_time.change == pytest.approx(1 / (1 + by_rate.change))


def test_change_and_bound_are_said() -> None:
    worse = verdict_of(80.0)
    assert worse.change == pytest.approx(-0.2)
    assert worse.bound is not None
    assert 0.015 < worse.bound < 0.05  # what one launch could have shown
    slower = verdict_of(1.3, metric_baseline(*[1.0] * 10, unit="s", better="lower"), unit="s", better="lower")
    assert slower.change == pytest.approx(-0.3)
    assert verdict_of(100.0, ONCE).bound is None


def test_a_suspect_needs_launches_by_its_spread() -> None:
    for stored, least, most in ((STEADY, 5, 5), (LOOSER, 6, 25)):
        judge = judge_of(stored, tests=100)
        launches = judge.launches(judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1"))
        assert least <= launches <= most


def test_no_launches_decide_where_nothing_is_known_of_the_spread() -> None:
    judge = judge_of(ONCE)
    suspect = judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1")
    assert judge.launches(suspect) == 0
    undecided = judge.confirm(suspect, [])
    assert (undecided.outcome, undecided.launches, undecided.interval) == (Outcome.UNDECIDED, 1, None)


@pytest.mark.parametrize(
    ("figure", "outcome"), [(20.0, Outcome.REGRESSED), (90.0, Outcome.UNDECIDED), (110.0, Outcome.UNDECIDED)]
)
def test_a_large_loss_is_found_in_a_wide_spread_too(figure: float, outcome: Outcome) -> None:
    judge = judge_of(WILD)
    suspect = judge.screen(TEST, "busbw", Metric(figure, "B/s", "higher"), "body-1")
    assert judge.launches(suspect) == 25
    verdict = judge.confirm(suspect, [Metric(figure, "B/s", "higher")] * 25)
    assert (verdict.outcome, verdict.launches, verdict.metric.value) == (outcome, 25, figure)
    assert verdict.interval is not None


def test_a_loss_beyond_what_the_most_launches_see_is_found() -> None:
    # What 25 launches find in such a spread is 7 %: 10 % is a regression, 3 % may be chance.
    stored = metric_baseline(*[100.0 * (1 + 6e-3 * (i - 4.5)) for i in range(10)])
    judge = judge_of(stored, tests=100)
    suspect = judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1")
    found = {v: judge.confirm(suspect, [Metric(v, "B/s", "higher")] * 25) for v in (97.0, 90.0)}
    assert [verdict.outcome for verdict in found.values()] == [Outcome.UNDECIDED, Outcome.REGRESSED]
    assert [verdict.needed is None for verdict in found.values()] == [False, True]
    assert all(verdict.bound is not None and 0.05 < verdict.bound < 0.1 for verdict in found.values())


def test_it_is_said_how_many_launches_of_a_baseline_would_do() -> None:
    judge = judge_of(metric_baseline(*[100.0 * (1 + 6e-3 * (i - 2)) for i in range(5)]))
    undecided = judge.confirm(judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1"), [])
    assert undecided.needed is not None
    assert undecided.needed > 5
    assert undecided.more == undecided.needed - 5
    assert read(Verdict, plain(undecided), "verdict") == undecided


@pytest.mark.parametrize(
    ("own", "others", "more"),
    # With five launches of its own, those of the run's GPUs alone count.
    [(5, 0, 5), (0, 5, 10), (2, 7, 1), (2, 5, 8), (9, 20, 1), (0, 20, 1), (12, 0, 1)],
)
def test_launches_that_are_to_be_added_are_of_this_machine(own: int, others: int, more: int) -> None:
    ids = [f"launch-{i}" for i in range(own + others)]
    described = {id_: replace(launch(), gpus="these" if i < own else "others") for i, id_ in enumerate(ids)}
    stored = metric_baseline(*[100.0] * len(ids))
    file = Baselines(KEY, {}, described, {TEST: TestBaseline("body-1", {"busbw": stored})})
    judge = Judge(KEY, file, [TEST], Policy(), gpus="these")
    kept = judge.entry(TEST)
    assert kept is not None
    assert judge._more(kept.metrics["busbw"], 10) == more


def test_fresh_launches_alone_decide() -> None:
    cleared = confirmed(STEADY, 100.0, 99.9, 100.2, 100.1, 99.8, first=60.0)
    assert (cleared.outcome, cleared.launches, cleared.metric.value) == (Outcome.SAME, 5, 100.0)
    regressed = confirmed(STEADY, 94.0, 93.0, 95.0, 94.0, 94.0, first=96.0)
    assert (regressed.outcome, regressed.metric.value) == (Outcome.REGRESSED, 94.0)
    assert regressed.change == pytest.approx(-0.06)


def test_bad_launches_among_the_fresh_ones_do_not_fail() -> None:
    assert confirmed(STEADY, 100.0, 70.0, 100.0, 70.0, 100.0).outcome is Outcome.SAME


@pytest.mark.parametrize(
    ("unit", "better", "values"), [("B/s", "higher", (94.0, 95.0, 93.0, 94.0, 94.0)), ("s", "lower", (106.0,) * 5)]
)
def test_the_interval_holds_the_change(
    unit: str, better: Literal["higher", "lower"], values: tuple[float, ...]
) -> None:
    stored = replace(STEADY, unit=unit, better=better)
    verdict = confirmed(stored, *values, first=values[0], unit=unit, better=better)
    assert verdict.interval is not None
    assert verdict.change is not None
    assert verdict.interval[0] < verdict.change < verdict.interval[1] < 0


def test_a_loss_that_is_never_worth_a_failure_passes() -> None:
    strict, lax = Policy(min_effect=0.001), Policy(min_effect=0.04)
    for policy, outcome in ((strict, Outcome.REGRESSED), (lax, Outcome.SAME)):
        judge = judge_of(STEADY, policy=policy)
        suspect = judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1")
        figures = [Metric(value, "B/s", "higher") for value in [97.0] * 5]
        assert judge.confirm(suspect, figures).outcome is outcome


def test_checks_share_the_chance_of_a_false_alarm() -> None:
    few, many = judge_of(LOOSER), judge_of(LOOSER, tests=100)
    assert many.rule.checks == 100
    assert few.rule.alpha == pytest.approx(100 * many.rule.alpha)
    suspect = few.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1")
    more, fewer = many.launches(suspect), few.launches(suspect)
    assert 0 < fewer < more


def test_only_the_tests_of_the_run_share_it() -> None:
    names = [TEST, *(f"test_{index}" for index in range(9))]
    known = replace(baselines(*[1.0] * 10), tests=dict.fromkeys(names, TestBaseline("body-1", {"busbw": LOOSER})))
    few, many = (Judge(KEY, known, selected, Policy()) for selected in ([TEST, "new"], names))
    assert (few.rule.checks, many.rule.checks) == (1, 10)
    assert few.rule.prior_total == many.rule.prior_total  # all of them tell how launches scatter


@pytest.mark.parametrize(
    ("recorded", "gpus", "elsewhere"),
    [
        (["a", "b"], "c", True),
        (["a", "c"], "c", False),
        (["a", ""], "c", False),  # of one it is not known
        (["a", "b"], "", False),
    ],
)
def test_a_baseline_that_was_recorded_on_other_gpus_is_told(recorded: list[str], gpus: str, elsewhere: bool) -> None:
    known = baselines(*[100.0] * 10)
    infos = zip(known.launches.items(), recorded * 5, strict=True)
    known = replace(known, launches={id_: replace(info, gpus=where) for (id_, info), where in infos})
    judge = Judge(KEY, known, [TEST], Policy(), gpus=gpus)
    suspect = judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1")
    assert suspect.elsewhere is elsewhere
    assert judge.confirm(suspect, [suspect.metric] * 5).elsewhere is elsewhere


@pytest.mark.parametrize("steady", [False, True])
def test_five_launches_on_these_gpus_place_a_figure_and_all_tell_its_spread(steady: bool) -> None:
    others = [110.0] * 5 if steady else [104.0, 107.0, 110.0, 113.0, 116.0]
    known = baselines(*others, *[100.0] * 5)
    infos = zip(known.launches.items(), ["a"] * 5 + ["c"] * 5, strict=True)
    known = replace(known, launches={id_: replace(info, gpus=where) for (id_, info), where in infos})
    judge = Judge(KEY, known, [TEST], Policy(), gpus="c")
    same = judge.screen(TEST, "busbw", Metric(100.5, "B/s", "higher"), "body-1")
    assert same.change == pytest.approx(0.005)
    assert same.bound is not None
    assert (same.bound < 0.05) is steady
    assert judge.launches(same) == (5 if steady else 25)


def test_a_baseline_of_other_machines_is_as_wide_as_they_differ() -> None:
    figures = [100.0, 100.1, 100.2, 99.9, 99.8]
    known = baselines(*figures, *[1.1 * figure for figure in figures])
    infos = zip(known.launches.items(), ["a"] * 5 + ["b"] * 5, strict=True)
    known = replace(known, launches={id_: replace(info, gpus=where) for (id_, info), where in infos})
    here, there = (Judge(KEY, known, [TEST], Policy(), gpus=gpus) for gpus in ("a", "c"))
    verdicts = [judge.screen(TEST, "busbw", Metric(100.0, "B/s", "higher"), "body-1") for judge in (here, there)]
    assert verdicts[0].bound is not None
    assert verdicts[1].bound is not None
    assert verdicts[0].bound < 0.05 < verdicts[1].bound


def test_launches_of_other_machines_are_one_history() -> None:
    figures = [100.0, 100.1, 100.2, 99.9, 99.8]
    known = baselines(*figures, *figures)
    infos = zip(known.launches.items(), ["a"] * 5 + ["b"] * 5, strict=True)
    known = replace(known, launches={id_: replace(info, gpus=where) for (id_, info), where in infos})
    rule = Judge(KEY, known, [TEST], Policy(), gpus="c").rule
    assert rule.prior_total == History.of([math.log(figure) for figure in figures * 2]).dof


def test_figures_as_far_apart_as_floats_are_undecided() -> None:
    judge = judge_of(metric_baseline(*[1e-300, 1e300] * 5))
    suspect = judge.screen(TEST, "busbw", Metric(1e-305, "B/s", "higher"), "body-1")
    assert (suspect.outcome, suspect.bound) == (Outcome.SUSPECT, None)
    assert judge.launches(suspect) == 25
    undecided = judge.confirm(suspect, [suspect.metric] * 25)
    assert (undecided.outcome, undecided.bound, undecided.needed) == (Outcome.UNDECIDED, None, None)
    gain = judge_of(metric_baseline(*[1e-300] * 10)).screen(TEST, "busbw", Metric(1e300, "B/s", "higher"), "body-1")
    assert gain.outcome is Outcome.IMPROVED
    times = replace(metric_baseline(*[1e-300] * 10), unit="s", better="lower")
    loss = judge_of(times).screen(TEST, "busbw", Metric(1e300, "s", "lower"), "body-1")
    assert loss.outcome is Outcome.SUSPECT


MET = metric_baseline(*[1.3 * (1 + 1e-4 * (i - 4.5)) for i in range(10)], unit="x")


@pytest.mark.parametrize(
    ("value", "interval", "stored", "outcome"),
    [
        (1.1, (1.05, 1.15), None, Outcome.MISSED),
        (1.1, (1.05, 1.15), STEADY, Outcome.MISSED),
        (1.1, (1.05, 1.15), MET, Outcome.MISSED),
        (1.25, (1.1, 1.3), None, Outcome.MISSING),
        (1.25, (1.1, 1.3), STEADY, Outcome.STALE),
        (1.2, (1.1, 1.3), MET, Outcome.SUSPECT),
        (1.3, (1.1, 1.5), MET, Outcome.DOUBTFUL),
        (1.5, (1.1, 1.9), MET, Outcome.DOUBTFUL),
        (1.3, (1.1, 1.2), MET, Outcome.DOUBTFUL),  # just reached it may have
        (1.3, (1.2, 1.4), MET, Outcome.SAME),  # and just reached it has
        (1.5, (1.25, 1.9), MET, Outcome.IMPROVED),
    ],
)
def test_the_worse_of_baseline_and_what_the_test_asks_for_is_said(
    value: float, interval: tuple[float, float], stored: MetricBaseline | None, outcome: Outcome
) -> None:
    verdict = verdict_of(value, stored, unit="x", at_least=1.2, interval=interval)
    assert verdict.outcome is outcome
    if stored is MET:
        assert verdict.change == pytest.approx(value / 1.3 - 1)


@pytest.mark.parametrize(
    ("values", "half", "outcome"),
    [
        ((1.29,) * 5, 0.05, Outcome.SAME),
        ((1.29,) * 5, 0.2, Outcome.DOUBTFUL),
        ((1.29,) * 5, None, Outcome.SAME),
        ((1.1, 1.3, 1.29, 1.1, 1.29), 0.05, Outcome.SAME),  # two bad launches
        ((1.22,) * 5, 0.01, Outcome.REGRESSED),
        ((1.22,) * 5, 0.2, Outcome.REGRESSED),
        ((1.19,) * 5, 0.005, Outcome.MISSED),
        ((1.19, 1.19, 1.3, 1.3, 1.19), 0.005, Outcome.MISSED),
    ],
)
def test_fresh_launches_too_must_reach_what_the_test_asks_for(
    values: tuple[float, ...], half: float | None, outcome: Outcome
) -> None:
    def figure(value: float) -> Metric:
        interval = None if half is None else (value - half, value + half)
        return Metric(value, "x", "higher", interval=interval, at_least=1.2)

    judge = judge_of(MET)
    suspect = judge.screen(TEST, "busbw", Metric(1.21, "x", "higher", interval=(1.205, 1.22), at_least=1.2), "body-1")
    assert suspect.outcome is Outcome.SUSPECT
    verdict = judge.confirm(suspect, [figure(value) for value in values])
    assert verdict.outcome is outcome
    middle = sorted(values)[2]
    assert verdict.metric.interval == (None if half is None else (middle - half, middle + half))


def test_quartiles_of_the_first_launch_are_not_those_of_fresh_ones() -> None:
    assert confirmed(STEADY, *[94.0] * 5, q1=93.0, q3=95.0).metric.q1 is None
    assert confirmed(STEADY, *[94.0] * 5, q1=93.0, q3=95.0).metric.q3 is None


def test_a_machine_that_was_not_fit_comes_before_a_figure_above_the_limit() -> None:
    hot = (Tripped("GPU-1", Gate.POWER_BRAKE),)
    assert verdict_of(100.0, STEADY, limit=90.0, invalid=hot).outcome is Outcome.INVALID


def test_above_the_limit_is_broken_whatever_the_baseline() -> None:
    for stored in (STEADY, None):
        assert verdict_of(100.0, stored, limit=90.0).outcome is Outcome.BROKEN
    assert verdict_of(100.0, STEADY, limit=90.0, body="body-2").outcome is Outcome.BROKEN


def test_no_baseline_is_missing() -> None:
    verdict = verdict_of(100.0, None)
    assert (verdict.outcome, verdict.baseline, verdict.change) == (Outcome.MISSING, None, None)


def test_a_baseline_of_other_metrics_is_missing() -> None:
    verdict = judge_of(STEADY).screen(TEST, "time", Metric(100.0, "B/s", "higher"), "body-1")
    assert verdict.outcome is Outcome.MISSING


@pytest.mark.parametrize(
    "fields",
    [{"body": "body-2"}, {"unit": "s"}, {"better": "lower"}, {"clock": "cuda_graph"}],
)
def test_a_baseline_of_something_else_is_stale(fields: dict[str, Any]) -> None:
    verdict = verdict_of(100.0, **fields)
    assert (verdict.outcome, verdict.baseline, verdict.change) == (Outcome.STALE, STEADY, None)


def test_an_unnamed_clock_is_any_clock() -> None:
    assert verdict_of(100.0, clock="").outcome is Outcome.SAME
    assert verdict_of(100.0, replace(STEADY, clock=""), clock="cuda_graph").outcome is Outcome.SAME
