"""Verdicts as JSON, and back."""

import json
from dataclasses import replace

import pytest

from pytest_gpuperf.baselines.plain import FieldError, make_plain, read
from pytest_gpuperf.verdicts.outcome import Reason
from pytest_gpuperf.verdicts.share import Share
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.verdicts.judged import STEADY, WILD, judge_of, raced, verdict_of

RACED = raced(judge_of(STEADY), [90.0, 90.2] * 3, [90.1, 90.0] * 3)
assert RACED is not None


def test_what_only_some_verdicts_have_may_be_missing() -> None:
    verdict = verdict_of(99.0)
    data = make_plain(verdict)
    for name in ("reason", "detail", "against", "code", "environment", "differs", "elsewhere"):
        del data[name]
    assert read(Verdict, data, "verdict") == verdict


@pytest.mark.parametrize(
    "verdict",
    [
        verdict_of(80.0),
        verdict_of(80.0, None),
        verdict_of(80.0, WILD, q1=79.0),
        RACED,
        replace(RACED, reason=Reason.CANNOT_RACE, detail="no git", elsewhere=True),
    ],
)
def test_json_and_back(verdict: Verdict) -> None:
    assert read(Verdict, json.loads(json.dumps(make_plain(verdict))), "verdict") == verdict


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"outcome": "fine"},
            r"verdict\.outcome: got 'fine', expected one of 'invalid', 'regressed', 'missed'",
        ),
        ({"reason": "so"}, r"verdict\.reason: got 'so', expected one of 'unfit', 'above the limit'"),
        ({"test": None}, r"verdict\.test: got None, expected a string"),
        ({"metric": 1}, r"verdict\.metric: got 1, expected an object"),
        ({"baseline": []}, r"verdict\.baseline: got \[\], expected an object"),
        ({"change": "+"}, r"verdict\.change: got '\+', expected a finite number"),
        ({"why": "x"}, r"verdict: got 'why', expected no keys but test, metric_name"),
        (
            {"code": make_plain(Share(0.1, (0.0, 0.2), 2)) | {"interval": [0.2, 0.1]}},
            r"verdict\.code\.interval: got \[0\.2, 0\.1\], expected two finite numbers, the smaller first",
        ),
    ],
)
def test_json_that_is_no_verdict_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        read(Verdict, {**make_plain(verdict_of(80.0)), **change}, "verdict")
