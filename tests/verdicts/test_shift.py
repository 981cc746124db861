"""A run that moved as a whole, and the figures that did not move with it."""

import math
from dataclasses import replace
from datetime import date

import pytest

from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.baselines.schema import MetricBaseline, TestBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.shift import distinct
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import KEY, TEST, baselines, metric_baseline
from tests.verdicts.judged import ONCE, STEADY, WILD, judge_of


def test_a_run_that_moved_as_a_whole_is_told_by_its_median() -> None:
    judge = judge_of(STEADY, tests=12)
    for index in range(11):
        judge.screen(f"test_{index}", "busbw", Metric(97.0, "B/s", "higher"), "body-1")
    shift = judge.shift
    assert shift == pytest.approx(1 / 0.97 - 1)
    for index in range(6):
        judge.screen(f"test_{index}", "busbw", Metric(100.0, "B/s", "higher"), "body-1")
    assert judge.shift is None  # five of eleven are five regressions


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


def judge_of_many(tests: int, *metrics: str, expected: KnownRegression | None = None) -> Judge:
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
    judge = judge_of_many(12, "a", expected=KnownRegression("a slow driver", until))
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
