"""Known regressions, as a reviewer writes them beside a baseline."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from pytest_gpuperf.baselines.plain import make_plain
from pytest_gpuperf.baselines.plain import read as read_plain
from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.baselines.schema import BaselineError, Baselines
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import KEY, TEST, baselines

KNOWN: dict[str, Any] = {"status": "regressed", "reason": "a slow driver", "until": "2027-01-31"}
SLOW = Verdict(TEST, "busbw", Metric(320e9, "B/s", "higher"), Outcome.REGRESSED, KEY, change=-0.1, bound=0.05)


def read(expected: object) -> Baselines:
    data: Any = baselines().to_json()
    data["tests"][TEST]["expected"] = expected
    return Baselines.from_json(data, "x.json", KEY)


def test_what_a_reviewer_writes_is_read_and_written_again() -> None:
    read_ = read({"busbw": {**KNOWN, "center": 320e9}})
    expected = read_.tests[TEST].expected
    assert expected == {"busbw": KnownRegression("a slow driver", date(2027, 1, 31), 320e9)}
    assert Baselines.from_json(read_.to_json(), "x.json", KEY) == read_


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        ({"latency": KNOWN}, ".expected: got 'latency', expected a metric of the test, one of 'busbw': "),
        ([], ".expected: got [], expected an object: "),
        ({"busbw": 1}, ".expected.busbw: got 1, expected an object: "),
        ({"busbw": {**KNOWN, "until": "31.1.2027"}}, ".until: got '31.1.2027', expected a date as YYYY-MM-DD: "),
        ({"busbw": {**KNOWN, "until": "20270131"}}, ".until: got '20270131', expected a date as YYYY-MM-DD: "),
        ({"busbw": {**KNOWN, "until": "2027-02-30"}}, ".until: got '2027-02-30', expected a date as YYYY-MM-DD: "),
        ({"busbw": {**KNOWN, "status": "fine"}}, ".status: got 'fine', expected one of 'regressed': "),
        ({"busbw": {**KNOWN, "reason": " "}}, ".reason: got ' ', expected why the regression is known: "),
        ({"busbw": {**KNOWN, "center": 0}}, ".center: got 0.0, expected a number above 0: "),
        ({"busbw": {**KNOWN, "untill": ""}}, ".busbw: got 'untill', expected no keys but reason, until, center, s"),
    ],
)
def test_another_expectation_is_refused_with_its_place_and_how_it_is_written(expected: object, problem: str) -> None:
    with pytest.raises(BaselineError) as caught:
        read(expected)
    assert str(caught.value).startswith(f"baselines 'x.json': file.tests[{TEST!r}].expected")
    assert problem in str(caught.value)
    assert 'write for example "expected": {"busbw": {"status": "regressed", ' in caught.value.cure


@pytest.mark.parametrize("center", [356.5, 35e9, 3.6e12])
def test_an_expected_centre_that_cannot_be_in_the_metrics_unit_is_refused(center: float) -> None:
    with pytest.raises(BaselineError) as caught:
        read({"busbw": {**KNOWN, "center": center}})
    assert str(caught.value) == (
        f"baselines 'x.json': file.tests[{TEST!r}].expected.busbw.center: got {center}, expected a metric within a "
        "factor of 10 of the baseline's centre, 3.565e+11 B/s: write it in B/s without a prefix, or delete it"
    )


@pytest.mark.parametrize("center", [36e9, 3.5e12])
def test_an_expected_centre_of_the_same_size_is_read(center: float) -> None:
    assert read({"busbw": {**KNOWN, "center": center}}).tests[TEST].expected["busbw"].center == center


def test_a_verdict_travels_with_what_was_expected() -> None:
    verdict = replace(SLOW, expected=KnownRegression("a slow driver", date(2027, 1, 31), 320e9))
    assert read_plain(Verdict, make_plain(verdict), "verdict") == verdict
