"""The judge: what screening makes of a figure, and what fresh launches make of a suspect."""

import json
import math
from dataclasses import replace
from datetime import date
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.verdicts.baselines import Baselines, TestBaseline
from pytest_gpuperf.verdicts.expected import Expected
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.json_fields import FieldError
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.metric import Metric
from pytest_gpuperf.verdicts.metric_baseline import MetricBaseline
from pytest_gpuperf.verdicts.metric_policy import MetricPolicy
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.shift import distinct
from pytest_gpuperf.verdicts.verdict import Outcome, Verdict
from tests.verdicts.examples import KEY, TEST, baselines, launch, metric_baseline

# Ten launches within 0.1 %: the spread is the floor, 0.3 %. Then those of 1.1 % (looser), 0.7 % (loose) and 22 %.
STEADY = metric_baseline(*[100.0 * (1 + 1e-4 * (i - 4.5)) for i in range(10)])
LOOSER = metric_baseline(*[100.0 * (1 + 4e-3 * (i - 4.5)) for i in range(10)])
LOOSE = metric_baseline(*[100.0 * (1 + 2e-3 * (i - 4.5)) for i in range(10)])
WILD = metric_baseline(*[100.0 * (1 + 6e-2 * (i - 4.5)) for i in range(10)])
ONCE = metric_baseline(100.0)


def judge_of(stored: MetricBaseline | None, *, tests: int = 1, policy: Policy | None = None) -> Judge:
    """A judge of so many tests, all with this baseline."""
    names = [TEST, *(f"test_{i}" for i in range(tests - 1))]
    entry = TestBaseline("body-1", {"busbw": stored}) if stored is not None else None
    known = replace(baselines(*[1.0] * 10), tests={} if entry is None else dict.fromkeys(names, entry))
    return Judge(KEY, known, names, policy or Policy())


def verdict_of(value: float, stored: MetricBaseline | None = STEADY, **fields: Any) -> Verdict:
    given_ = {"unit": "B/s", "better": "higher", **fields}
    body = given_.pop("body", "body-1")
    return judge_of(stored).screen(TEST, "busbw", Metric(value, **given_), body)


def confirmed(stored: MetricBaseline, *values: float, first: float = 90.0, **fields: Any) -> Verdict:
    given_: dict[str, Any] = {"unit": "B/s", "better": "higher", **fields}
    judge = judge_of(stored)
    suspect = judge.screen(TEST, "busbw", Metric(first, **given_), "body-1")
    assert suspect.outcome is Outcome.SUSPECT
    return judge.confirm(suspect, [Metric(value, **given_) for value in values])


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
    assert Verdict.from_json(undecided.to_json()) == undecided


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


def test_a_run_that_moved_as_a_whole_is_told_by_its_median() -> None:
    judge = judge_of(STEADY, tests=12)
    for index in range(11):
        judge.screen(f"test_{index}", "busbw", Metric(97.0, "B/s", "higher"), "body-1")
    shift = judge.shift
    assert shift == pytest.approx(1 / 0.97 - 1)
    for index in range(6):
        judge.screen(f"test_{index}", "busbw", Metric(100.0, "B/s", "higher"), "body-1")
    assert judge.shift is None  # five of eleven are five regressions


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


def test_a_rate_that_is_made_of_a_time_is_no_second_check() -> None:
    rates = [100.0 * (1 + 4e-3 * (i - 4.5)) for i in range(10)]
    seconds = metric_baseline(*[float(f"{1 / rate:.5g}") for rate in rates], unit="s", better="lower")
    other = metric_baseline(*[100.0 * (1 + 1e-2 * (i - 4.5)) for i in range(10)])
    metrics = {"busbw": metric_baseline(*rates), "time": seconds}

    def total(**more: MetricBaseline) -> float:
        entry = TestBaseline("body-1", {**metrics, **more})
        return Judge(KEY, replace(baselines(*rates), tests={TEST: entry}), [TEST], Policy()).rule.prior_total

    assert total() == History.of([math.log(rate) for rate in rates]).dof
    assert total(other=other) == 2 * total()
    assert total(few=replace(other, launches=other.launches[:5])) < 2 * total()


def test_launches_that_scatter_alike_but_are_not_the_same_are_two_checks() -> None:
    ten, five = History(10, 0.0, 0.01, 7.2), History(5, 0.0, 0.01, 2.4)
    assert distinct([ten, five, ten, replace(ten, center=5.0), five]) == [ten, five]


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


def test_verdicts_of_earlier_results_are_read() -> None:
    verdict = verdict_of(95.0)
    data = verdict.to_json()
    assert Verdict.from_json(data) == verdict
    del data["of_the_gpus"], data["elsewhere"], data["policy"]
    assert Verdict.from_json(data) == verdict
    told = replace(verdict, of_the_gpus=True, elsewhere=True, policy=MetricPolicy("noisy", detect=0.2))
    assert Verdict.from_json(told.to_json()) == told


def judge_of_many(tests: int, *metrics: str, expected: Expected | None = None) -> Judge:
    """A judge of so many tests, with metrics of as many spreads; the first metric's regression may be known."""
    spreads = [1e-4 * (number + 1) for number in range(len(metrics))]
    entry = TestBaseline(
        "body-1",
        {
            name: metric_baseline(*[100.0 * (1 + spread * (i - 4.5)) for i in range(10)])
            for name, spread in zip(metrics, spreads, strict=True)
        },
        {} if expected is None else {metrics[0]: expected},
    )
    names = [f"test_{index}" for index in range(tests)]
    known = replace(baselines(*[1.0] * 10), tests=dict.fromkeys(names, entry))
    return Judge(KEY, known, names, Policy(), today=date(2026, 12, 1))


def screened(judge: Judge, test: int, metric_name: str, value: float) -> Verdict:
    return judge.screen(f"test_{test}", metric_name, Metric(value, "B/s", "higher"), "body-1")


def test_the_many_figures_of_one_test_are_not_the_whole_run() -> None:
    names = [f"m{number}" for number in range(10)]
    judge = judge_of_many(3, *names)
    for name in names:
        screened(judge, 0, name, 80.0)
    for test in (1, 2):
        screened(judge, test, "m0", 99.0)
    assert judge.shift is None
    screened(judge, 1, "m0", 80.0)
    assert judge.shift == pytest.approx(1 / 0.8 - 1)  # two of three tests


@pytest.mark.parametrize(("loss", "moved"), [(0.95, True), (1.05, True), (1.0, False)])
def test_tests_move_the_way_of_the_run(loss: float, moved: bool) -> None:
    judge = judge_of_many(12, "a")
    for test in range(12):
        screened(judge, test, "a", 100.0 * loss)
    assert (judge.shift is not None) is moved


def test_a_time_and_the_rate_made_from_it_are_one_figure_of_a_shift() -> None:
    rates = [100.0 * (1 + 4e-3 * (i - 4.5)) for i in range(10)]
    seconds = metric_baseline(*[1 / rate for rate in rates], unit="s", better="lower")
    names = [f"test_{index}" for index in range(10)]
    entry = TestBaseline("body-1", {"busbw": metric_baseline(*rates), "time": seconds})
    known = replace(baselines(*[1.0] * 10), tests=dict.fromkeys(names, entry))
    judge = Judge(KEY, known, names, Policy())
    for test in range(9):
        judge.screen(f"test_{test}", "time", Metric(1 / 80.0, "s", "lower"), "body-1")
        screened(judge, test, "busbw", 80.0)
    assert judge.shift is None
    screened(judge, 9, "busbw", 80.0)
    assert judge.shift == pytest.approx(1 / 0.8 - 1, rel=1e-3)


@pytest.mark.parametrize(("until", "shift"), [(date(2026, 12, 1), False), (date(2026, 11, 30), True)])
def test_known_regressions_are_no_shift_of_the_whole_run(until: date, shift: bool) -> None:
    judge = judge_of_many(12, "a", expected=Expected("a slow driver", until))
    for test in range(12):
        assert screened(judge, test, "a", 90.0).outcome is Outcome.SUSPECT
    assert (judge.shift is not None) is shift


@pytest.mark.parametrize(
    ("others", "value", "with_the_run"),
    [
        (95.0, 94.9, True),
        (95.0, 92.0, True),
        (95.0, 50.0, False),
        (103.0, 50.0, False),
        (103.0, 96.0, False),
        (100.0, 50.0, False),
    ],
)
def test_a_figure_that_moved_otherwise_than_the_run_is_judged_by_itself(
    others: float, value: float, with_the_run: bool
) -> None:
    judge = judge_of_many(12, "a")
    for test in range(11):
        screened(judge, test, "a", others)
    assert judge.moved_with_the_run(screened(judge, 11, "a", value)) is with_the_run


@pytest.mark.parametrize(
    ("others", "value", "with_the_run"), [(95.0, 93.0, True), (95.0, 50.0, False), (95.0, 101.0, False)]
)
def test_so_is_one_of_unknown_spread(others: float, value: float, with_the_run: bool) -> None:
    names = [f"test_{index}" for index in range(12)]
    known = replace(baselines(*[1.0] * 10), tests=dict.fromkeys(names, TestBaseline("body-1", {"a": ONCE})))
    judge = Judge(KEY, known, names, Policy())
    for test in range(11):
        screened(judge, test, "a", others)
    assert judge.moved_with_the_run(screened(judge, 11, "a", value)) is with_the_run


def test_a_suspect_that_gained_as_the_run_did_moved_with_it() -> None:
    names = [f"test_{index}" for index in range(12)]
    known = replace(baselines(*[1.0] * 10), tests=dict.fromkeys(names, TestBaseline("body-1", {"a": WILD})))
    judge = Judge(KEY, known, names, Policy())
    suspects = [screened(judge, test, "a", 105.0) for test in range(12)]
    assert all(suspect.outcome is Outcome.SUSPECT and judge.moved_with_the_run(suspect) for suspect in suspects)


def test_few_figures_tell_no_shift() -> None:
    judge = judge_of(STEADY, tests=4)
    for index in range(3):
        judge.screen(f"test_{index}", "busbw", Metric(80.0, "B/s", "higher"), "body-1")
    assert judge.shift is None


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
    assert verdict_of(100.0, STEADY, limit=90.0, invalid="GPU 1: hot").outcome is Outcome.INVALID


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


@pytest.mark.parametrize(
    "verdict",
    [
        verdict_of(80.0),
        verdict_of(80.0, None),
        verdict_of(80.0, LOOSE, q1=79.0),
        confirmed(STEADY, 90.0, 91.0, 92.0, 91.0, 91.0),
    ],
)
def test_json_and_back(verdict: Verdict) -> None:
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"outcome": "fine"},
            r"verdict\.outcome: got 'fine', expected one of 'same', 'improved', 'regressed'",
        ),
        ({"test": None}, r"verdict\.test: got None, expected a string"),
        ({"metric": 1}, r"verdict\.metric: got 1, expected an object"),
        ({"baseline": []}, r"verdict\.baseline: got \[\], expected an object"),
        ({"change": "+"}, r"verdict\.change: got '\+', expected a finite number"),
        ({"why": "x"}, r"verdict: got 'why', expected no keys but test, metric_name"),
    ],
)
def test_json_that_is_no_verdict_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        Verdict.from_json({**verdict_of(80.0).to_json(), **change})
