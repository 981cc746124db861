"""Verdicts as JSON, and back."""

import json
from dataclasses import replace

import pytest

from pytest_gpuperf.baselines.json_fields import FieldError
from pytest_gpuperf.baselines.metric_policy import MetricPolicy
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.verdicts.judged import LOOSE, STEADY, confirmed, verdict_of


def test_verdicts_of_earlier_results_are_read() -> None:
    verdict = verdict_of(95.0)
    data = verdict.to_json()
    assert Verdict.from_json(data) == verdict
    del data["of_the_gpus"], data["elsewhere"], data["policy"]
    assert Verdict.from_json(data) == verdict
    told = replace(verdict, of_the_gpus=True, elsewhere=True, policy=MetricPolicy("noisy", detect=0.2))
    assert Verdict.from_json(told.to_json()) == told


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
            r"verdict\.outcome: got 'fine', expected one of 'invalid', 'broken', 'regressed'",
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
