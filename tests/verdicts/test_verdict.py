"""Verdicts as JSON, and back."""

import json
from dataclasses import replace

import pytest

from pytest_gpuperf.baselines.plain import FieldError, plain, read
from pytest_gpuperf.baselines.reviewed import MetricPolicy
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.verdicts.judged import LOOSE, STEADY, confirmed, verdict_of


def test_verdicts_of_earlier_results_are_read() -> None:
    verdict = verdict_of(95.0)
    data = plain(verdict)
    assert read(Verdict, data, "verdict") == verdict
    del data["of_the_gpus"], data["elsewhere"], data["policy"]
    assert read(Verdict, data, "verdict") == verdict
    told = replace(verdict, of_the_gpus=True, elsewhere=True, policy=MetricPolicy("noisy", detect=0.2))
    assert read(Verdict, plain(told), "verdict") == told


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
    assert read(Verdict, json.loads(json.dumps(plain(verdict))), "verdict") == verdict


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
        read(Verdict, {**plain(verdict_of(80.0)), **change}, "verdict")
