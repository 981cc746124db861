"""The rule that judges a figure."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.verdicts.baselines import MetricBaseline, TestBaseline
from pytest_gpuperf.verdicts.json_fields import FieldError
from pytest_gpuperf.verdicts.judge import Outcome, Verdict, judge
from pytest_gpuperf.verdicts.metric import Metric
from tests.verdicts.examples import KEY, TEST, metric_baseline

STEADY = metric_baseline(100.0, 100.0, 100.0)
LOOSE = metric_baseline(100.0, 97.0, 103.0)  # sigma_b 0.030, bound 0.090
WILD = metric_baseline(100.0, 90.0, 110.0)  # sigma_b 0.10, bound 0.30


def verdict_of(value: float, stored: MetricBaseline | None = STEADY, **fields: Any) -> Verdict:
    given_ = {"unit": "B/s", "better": "higher", **fields}
    body = given_.pop("body", "body-1")
    relative_bound = given_.pop("relative_bound", 0.05)
    baseline = None if stored is None else TestBaseline("body-1", {"busbw": stored})
    metric = Metric(value, **given_)
    return judge(
        TEST,
        "busbw",
        metric,
        hardware_key=KEY,
        body_hash=body,
        baseline=baseline,
        relative_bound=relative_bound,
    )


@pytest.mark.parametrize(
    ("value", "stored", "outcome"),
    [
        (100.0, STEADY, Outcome.SAME),
        (95.2, STEADY, Outcome.SAME),
        (95.0, STEADY, Outcome.REGRESSED),
        (105.1, STEADY, Outcome.SAME),
        (105.2, STEADY, Outcome.IMPROVED),
        (92.0, LOOSE, Outcome.SAME),
        (91.0, LOOSE, Outcome.REGRESSED),
        (110.0, LOOSE, Outcome.IMPROVED),
        (100.0, WILD, Outcome.UNDECIDED),
        (80.0, WILD, Outcome.UNDECIDED),
        (70.0, WILD, Outcome.REGRESSED),
        (140.0, WILD, Outcome.IMPROVED),
    ],
)
def test_a_throughput_is_held_against_its_bound(value: float, stored: MetricBaseline, outcome: Outcome) -> None:
    assert verdict_of(value, stored).outcome is outcome


@pytest.mark.parametrize(
    ("value", "outcome"),
    [(100.0, Outcome.SAME), (105.2, Outcome.REGRESSED), (105.1, Outcome.SAME), (95.0, Outcome.IMPROVED)],
)
def test_a_time_is_worse_when_it_is_longer(value: float, outcome: Outcome) -> None:
    stored = metric_baseline(100.0, 100.0, unit="s", better="lower")
    assert verdict_of(value, stored, unit="s", better="lower").outcome is outcome


@given(st.floats(0.5, 2.0), st.floats(0.01, 0.15))
def test_a_time_and_the_throughput_made_from_it_have_one_verdict(slowdown: float, bound: float) -> None:
    if abs(abs(math.log(slowdown)) - bound) < 1e-9:
        return
    time = metric_baseline(1.0, unit="s", better="lower")
    by_time = verdict_of(slowdown, time, unit="s", better="lower", relative_bound=bound)
    by_rate = verdict_of(1 / slowdown, metric_baseline(1.0), relative_bound=bound)
    assert by_time.outcome is by_rate.outcome


def test_change_and_bound_are_said() -> None:
    worse = verdict_of(80.0)
    assert worse.change == pytest.approx(-0.2)
    assert worse.bound == 0.05
    slower = verdict_of(1.3, metric_baseline(1.0, unit="s", better="lower"), unit="s", better="lower")
    assert slower.change == pytest.approx(-0.3)
    assert verdict_of(100.0, LOOSE).bound == 3 * LOOSE.sigma_b


def test_the_bound_can_be_chosen() -> None:
    assert verdict_of(98.0, relative_bound=0.01).outcome is Outcome.REGRESSED
    assert verdict_of(82.0, relative_bound=0.2).outcome is Outcome.SAME  # as the user chose; no spread hides anything
    assert verdict_of(82.0, WILD, relative_bound=0.2).outcome is Outcome.UNDECIDED


def test_above_the_limit_is_broken_whatever_the_baseline() -> None:
    for stored in (STEADY, None):
        assert verdict_of(100.0, stored, limit=90.0).outcome is Outcome.BROKEN
    assert verdict_of(100.0, STEADY, limit=90.0, body="body-2").outcome is Outcome.BROKEN


def test_no_baseline_is_missing() -> None:
    verdict = verdict_of(100.0, None)
    assert (verdict.outcome, verdict.baseline, verdict.change) == (Outcome.MISSING, None, None)


def test_a_baseline_of_other_metrics_is_missing() -> None:
    others = TestBaseline("body-1", {"time": STEADY})
    metric = Metric(100.0, "B/s", "higher")
    verdict = judge(TEST, "busbw", metric, hardware_key=KEY, body_hash="body-1", baseline=others)
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


@pytest.mark.parametrize("verdict", [verdict_of(80.0), verdict_of(80.0, None), verdict_of(80.0, LOOSE, q1=79.0)])
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
