"""A test's verdicts as properties of its report."""

from dataclasses import replace

import pytest

from pytest_gpuperf.report.properties import make_verdict_properties, read_verdicts
from tests.report.examples import SAME, UNJUDGED, report


def test_verdicts_arrive_as_they_were_sent() -> None:
    sent = [SAME, UNJUDGED]
    assert read_verdicts(report(user_properties=make_verdict_properties(sent))) == sent
    assert read_verdicts(report(user_properties=[("other", "x")])) is None


@pytest.mark.parametrize("value", ["hello", 3, "[3]", "{}", '[{"a": 1}]', None])
def test_a_property_of_that_name_that_a_test_has_recorded_is_left_alone(value: object) -> None:
    assert read_verdicts(report(user_properties=[("gpuperf", value)])) is None


def test_each_figure_is_there_in_plain_numbers_too() -> None:
    small = replace(UNJUDGED, metric=replace(UNJUDGED.metric, value=27.12345678e-6))
    assert make_verdict_properties([SAME, small])[1:] == [
        ("gpuperf.busbw.value", "3.54e+11"),
        ("gpuperf.busbw.unit", "B/s"),
        ("gpuperf.busbw.verdict", "same"),
        ("gpuperf.busbw.baseline", "3.56e+11"),
        ("gpuperf.busbw.change", "-0.5 % GB/s"),
        ("gpuperf.time.value", "2.71235e-05"),
        ("gpuperf.time.unit", "s"),
        ("gpuperf.time.verdict", "unjudged"),
    ]
