"""Known regressions, as a reviewer writes them beside a baseline."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from pytest_gpuperf.baselines.plain import plain
from pytest_gpuperf.baselines.plain import read as read_plain
from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.baselines.schema import BaselineError, Baselines
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.excuse import excused
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import KEY, TEST, baselines

KNOWN: dict[str, Any] = {"status": "regressed", "reason": "a slow driver", "until": "2027-01-31"}
ENTRY = replace(baselines().tests[TEST], expected={"busbw": KnownRegression("a slow driver", date(2027, 1, 31))})
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


def test_a_known_regression_does_not_excuse_what_the_test_asks_for() -> None:
    short = replace(SLOW, metric=replace(SLOW.metric, interval=(300e9, 340e9), at_least=310e9))
    assert excused(short, ENTRY, date(2026, 12, 1)).outcome is Outcome.DOUBTFUL
    reached = replace(SLOW, metric=replace(SLOW.metric, interval=(300e9, 340e9), at_least=290e9))
    assert excused(reached, ENTRY, date(2026, 12, 1)).outcome is Outcome.EXPECTED


@pytest.mark.parametrize("center", [356.5, 35e9, 3.6e12])
def test_an_expected_centre_that_cannot_be_in_the_metrics_unit_is_refused(center: float) -> None:
    with pytest.raises(BaselineError) as caught:
        read({"busbw": {**KNOWN, "center": center}})
    assert str(caught.value) == (
        f"baselines 'x.json': file.tests[{TEST!r}].expected.busbw.center: got {center}, expected a figure within a "
        "factor of 10 of the baseline's centre, 3.565e+11 B/s: write it in B/s without a prefix, or delete it"
    )


@pytest.mark.parametrize("center", [36e9, 3.5e12])
def test_an_expected_centre_of_the_same_size_is_read(center: float) -> None:
    assert read({"busbw": {**KNOWN, "center": center}}).tests[TEST].expected["busbw"].center == center


@pytest.mark.parametrize(
    ("today", "outcome"),
    [
        (date(2026, 12, 1), Outcome.EXPECTED),
        (date(2027, 1, 31), Outcome.EXPECTED),
        (date(2027, 2, 1), Outcome.REGRESSED),
    ],
)
def test_a_regression_is_expected_until_the_end_of_its_day(today: date, outcome: Outcome) -> None:
    assert excused(SLOW, ENTRY, today).outcome is outcome


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.REGRESSED])
def test_nothing_but_a_regression_is_excused(outcome: Outcome) -> None:
    verdict = excused(replace(SLOW, outcome=outcome), ENTRY, date(2026, 12, 1))
    assert verdict.outcome is outcome
    assert verdict.expected == ENTRY.expected["busbw"]


def test_what_is_not_expected_is_left_as_it_is() -> None:
    other = replace(SLOW, metric_name="time")
    assert excused(other, ENTRY, date(2026, 12, 1)) is other
    assert excused(SLOW, None, date(2026, 12, 1)) is SLOW


@pytest.mark.parametrize(
    ("better", "value", "outcome"),
    [
        ("higher", 340e9, Outcome.EXPECTED),
        ("higher", 310e9, Outcome.EXPECTED),
        ("higher", 300e9, Outcome.REGRESSED),
        ("lower", 310e9, Outcome.EXPECTED),
        ("lower", 340e9, Outcome.REGRESSED),
    ],
)
def test_what_is_worse_than_expected_still_counts(better: Any, value: float, outcome: Outcome) -> None:
    entry = replace(ENTRY, expected={"busbw": KnownRegression("x", date(2027, 1, 31), 320e9)})
    verdict = replace(SLOW, metric=Metric(value, "B/s", better))
    assert excused(verdict, entry, date(2026, 12, 1)).outcome is outcome


def test_a_verdict_travels_with_what_was_expected() -> None:
    verdict = excused(SLOW, ENTRY, date(2026, 12, 1))
    assert read_plain(Verdict, plain(verdict), "verdict") == verdict
