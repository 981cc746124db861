"""Values as plain JSON types, and back: a figure stands for all of them."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.baselines.plain import OMITTED, OPTIONAL, FieldError, Made, make_plain, read
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.outcome import Outcome
from tests.figures.test_metric import BANDWIDTH, TIME


@pytest.mark.parametrize("metric", [BANDWIDTH, TIME])
def test_json_and_back(metric: Metric) -> None:
    assert read(Metric, json.loads(json.dumps(make_plain(metric))), "metric") == metric


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": "fast"}, r"metric\.value: got 'fast', expected a finite number"),
        ({"value": 10**400}, r"metric\.value: got 10+, expected a finite number"),
        ({"value": -1.0}, r"metric: metric value is -1\.0, expected a finite number above 0"),
        ({"unit": 3}, r"metric\.unit: got 3, expected a string"),
        ({"better": []}, r"metric\.better: got \[\], expected one of 'higher', 'lower'"),
        ({"samples": True}, r"metric\.samples: got True, expected an integer of at least 1"),
        ({"speed": 1}, r"metric: got 'speed', expected no keys but value, unit, "),
    ],
)
def test_json_that_is_no_metric_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        read(Metric, {**make_plain(BANDWIDTH), **change}, "metric")


@pytest.mark.parametrize("name", list(make_plain(BANDWIDTH)))
def test_a_missing_key_is_named(name: str) -> None:
    data = make_plain(BANDWIDTH)
    del data[name]
    with pytest.raises(FieldError, match=rf"metric: got \[.*, expected a key '{name}'"):
        read(Metric, data, "metric")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(list(make_plain(BANDWIDTH))), json_values))
def test_hostile_json_is_a_metric_or_a_field_error(change: dict[str, object]) -> None:
    with suppress(FieldError):
        read(Metric, {**make_plain(BANDWIDTH), **change}, "metric")


def test_the_name_of_a_file_that_is_not_utf_8_comes_back() -> None:
    metric = replace(TIME, clock="a\udcffb")
    assert read(Metric, json.loads(json.dumps(make_plain(metric))), "metric") == metric


@pytest.mark.parametrize(
    ("interval", "expected"),
    [([1.0], "more values"), ([1.0, 2.0, 3.0], "2 values"), (3.0, "a list"), ([1.0, True], "a finite number")],
)
def test_a_list_that_is_too_short_or_too_long_is_refused(interval: object, expected: str) -> None:
    with pytest.raises(FieldError, match=rf"metric\.interval(\[1\])?: got .*, expected {expected}$"):
        read(Metric, {**make_plain(BANDWIDTH), "interval": interval}, "metric")


@dataclass(frozen=True, slots=True)
class Holder:
    """Has a field of each kind of type."""

    name: str
    flag: bool
    count: int
    outcome: Outcome
    day: Annotated[date, Made(lambda text: date.fromisoformat(str(text)))]
    others: tuple["Holder", ...] = ()
    by_name: Mapping[str, "Holder | None"] = field(default_factory=dict, metadata=OMITTED)
    later: str = field(default="x", metadata=OPTIONAL)


ONE = Holder("a", True, 1, Outcome.SAME, date(2027, 1, 31))


def test_a_value_within_values_is_plain_and_comes_back() -> None:
    whole = replace(ONE, others=(ONE, replace(ONE, later="y")), by_name={"one": ONE, "none": None})
    assert read(Holder, json.loads(json.dumps(make_plain(whole))), "file") == whole
    assert make_plain(ONE) == {
        "name": "a",
        "flag": True,
        "count": 1,
        "outcome": "same",
        "day": "2027-01-31",
        "others": [],
        "later": "x",
    }


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"flag": 1}, "file.flag: got 1, expected true or false"),
        ({"flag": "true"}, "file.flag: got 'true', expected true or false"),
        ({"count": True}, "file.count: got True, expected an integer of at least 1"),
        ({"count": 1.0}, "file.count: got 1.0, expected an integer of at least 1"),
        ({"name": None}, "file.name: got None, expected a string"),
        ({"outcome": "odd"}, "file.outcome: got 'odd', expected one of 'invalid', 'regressed'"),
        ({"day": "soon"}, "file.day: Invalid isoformat string: 'soon'"),
        ({"others": {}}, "file.others: got {}, expected a list"),
        ({"others": [3]}, "file.others[0]: got 3, expected an object"),
        (
            {"others": [make_plain(ONE), {**make_plain(ONE), "count": "1"}]},
            "file.others[1].count: got '1', expected an integer",
        ),
        (
            {"others": [{**make_plain(ONE), "old": 1}]},
            "file.others[0]: got 'old', expected no keys but name, flag, count",
        ),
        ({"by_name": {"a b": {"name": 1}}}, "file.by_name['a b']: got ['name'], expected a key 'flag'"),
    ],
)
def test_what_is_no_such_value_is_named_by_its_place(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(Holder, {**make_plain(ONE), **change}, "file")
    assert str(caught.value).startswith(problem)
