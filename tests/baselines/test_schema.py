"""The data model of stored measurements."""

import json
import math
import pickle
import statistics
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.baselines.schema import BaselineError, Baselines, LaunchFigure, MetricBaseline, TestBaseline
from tests.baselines.examples import KEY, TEST, any_baselines, baselines, launch, metric_baseline, update_of

PATH = "baselines/x.json"
OTHER = "suites/other.py::test_other"


def read(data: object) -> Baselines:
    return Baselines.from_json(data, PATH, KEY)


@given(any_baselines)
def test_json_and_back(original: Baselines) -> None:
    assert read(json.loads(json.dumps(original.to_json()))) == original


def test_the_center_is_the_median_of_the_launches() -> None:
    assert metric_baseline(1.0, 9.0, 2.0).center == 2.0
    assert metric_baseline(1.0, 2.0).center == 1.5


def test_the_spread_is_that_of_the_logarithms() -> None:
    medians = (100.0, 101.0, 99.0)
    assert metric_baseline(*medians).sigma_b == statistics.stdev(math.log(median) for median in medians)
    assert metric_baseline(100.0).sigma_b == 0.0


def test_derived_fields_are_recomputed_and_never_trusted() -> None:
    data: Any = baselines().to_json()
    entry = data["tests"][TEST]["metrics"]["busbw"]
    assert entry["center"] == 356.5e9
    entry["center"], entry["sigma_b"] = 1.0, "none of your business"
    assert read(data) == baselines()
    del entry["center"], entry["sigma_b"]
    assert read(data) == baselines()


def test_an_update_replaces_its_tests_whole_and_keeps_the_others() -> None:
    old = baselines()
    other = TestBaseline("body-2", {"time": metric_baseline(1.0, 2.0)})
    both = old.replace_tests({OTHER: other}, {}, update_of(OTHER))
    assert both.tests == {**old.tests, OTHER: other}
    replaced = TestBaseline("body-3", {"latency": metric_baseline(3.0)})
    after = both.replace_tests({TEST: replaced}, {"launch-0": launch("h2")}, update_of(TEST))
    assert after.tests == {TEST: replaced, OTHER: other}
    assert after.launches["launch-0"].host == "h2"
    assert [entry.tests for entry in after.updates] == [(TEST,), (OTHER,), (TEST,)]
    assert old == baselines()


def test_an_update_drops_launches_that_nothing_refers_to() -> None:
    new = MetricBaseline("B/s", "higher", "", (LaunchFigure("new", 1, 1.0),))
    info = {"new": launch(), "unused": launch()}
    after = baselines().replace_tests({TEST: TestBaseline("body-1", {"busbw": new})}, info, update_of(TEST))
    assert set(after.launches) == {"new"}


def test_figures_of_undescribed_launches_are_refused() -> None:
    new = TestBaseline("body-1", {"busbw": MetricBaseline("s", "lower", "", (LaunchFigure("ghost", 1, 1.0),))})
    with pytest.raises(ValueError, match=r"launches are \['launch-0', 'launch-1'\], expected \['ghost'\] too, which"):
        baselines().replace_tests({OTHER: new}, {}, update_of(OTHER))


@pytest.mark.parametrize("ids", [(), ("a", "a")])
def test_a_metric_needs_launches_each_once(ids: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"launches are \[.*\], expected at least one, each once"):
        MetricBaseline("s", "lower", "", tuple(LaunchFigure(id_, 1, 1.0) for id_ in ids))


@pytest.mark.parametrize("figure", [float("nan"), 0.0, -1.0, float("inf")])
@pytest.mark.parametrize("name", ["median", "q1", "q3"])
def test_a_launch_needs_figures_that_have_a_logarithm(name: str, figure: float) -> None:
    fields: dict[str, Any] = {"median": 1.0, name: figure}
    with pytest.raises(ValueError, match=rf"{name} of launch 'a' is {figure}, expected a finite number above 0"):
        LaunchFigure("a", 1, **fields)


METRIC = ("tests", TEST, "metrics", "busbw")
LAUNCH = (*METRIC, "launches", 0)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("schema",), "1", r"file\.schema: got '1', expected an integer"),
        (("schema",), 0, r"file\.schema: got 0, expected an integer of at least 1"),
        (("hardware_key",), 7, r"file\.hardware_key: got 7, expected a string"),
        (("author",), "me", r"file: got 'author', expected no keys but hardware_key, "),
        (("match",), [], r"file\.match: got \[\], expected an object"),
        (
            ("match", "cc"),
            [9],
            r"file\.match\.cc: got \[9\], expected a string, a finite number, true, false or",
        ),
        (("match", "cc"), math.nan, r"file\.match\.cc: got nan, expected a string, a finite number"),
        (("launches",), {}, r"file: launches are \[\], expected \['launch-0', 'launch-1'\] too"),
        (("launches", "launch-0"), "h1", r"file\.launches\['launch-0'\]: got 'h1', expected an object"),
        (
            ("launches", "launch-0", "environment", "nccl"),
            2.28,
            r"environment\.nccl: got 2\.28, expected a string",
        ),
        (("launches", "launch-0", "gpus"), 8, r"file\.launches\['launch-0'\]\.gpus: got 8, expected a string"),
        (("tests",), [], r"file\.tests: got \[\], expected an object"),
        (("tests", TEST, "body_hash"), None, r"\.body_hash: got None, expected a string"),
        ((*METRIC, "better"), "faster", r"\.metrics\.busbw\.better: got 'faster', expected one of 'higher'"),
        ((*METRIC, "stat"), "mean", r"\.stat: got 'mean', expected one of 'median'"),
        ((*METRIC, "reduce"), "mean", r"\.reduce: got 'mean', expected one of 'max_over_ranks'"),
        ((*METRIC, "launches"), {}, r"\.busbw\.launches: got \{\}, expected a list"),
        ((*METRIC, "launches"), [], r"\.busbw: launches are \[\], expected at least one, each once"),
        ((*LAUNCH, "median"), math.nan, r"\.launches\[0\]\.median: got nan, expected a finite number"),
        (
            (*LAUNCH, "median"),
            0,
            r"\.launches\[0\]: median of launch 'launch-0' is 0\.0, expected a finite number",
        ),
        ((*LAUNCH, "q1"), "low", r"\.launches\[0\]\.q1: got 'low', expected a finite number"),
        ((*LAUNCH, "n"), 1.5, r"\.launches\[0\]\.n: got 1\.5, expected an integer of at least 1"),
        ((*LAUNCH, "medain"), 1, r"\.launches\[0\]: got 'medain', expected no keys but launch, n, median"),
        (("updates",), {}, r"file\.updates: got \{\}, expected a list"),
        (("updates", 0, "tests"), [1], r"file\.updates\[0\]\.tests\[0\]: got 1, expected a string"),
    ],
)
def test_a_file_that_says_something_else_is_refused_by_place(
    place: tuple[Any, ...], value: object, message: str
) -> None:
    data: Any = baselines().to_json()
    parent = data
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = value
    with pytest.raises(BaselineError, match=message) as caught:
        read(data)
    assert str(caught.value).startswith(f"baselines '{PATH}': ")
    assert caught.value.cure.startswith("restore it from version control")


def test_a_missing_key_is_named_anywhere() -> None:
    def drop_each(node: Any, root: Any) -> list[str]:
        named = []
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            child = node[key]
            named += drop_each(child, root)
            if key in required and isinstance(node, dict):
                del node[key]
                with pytest.raises(BaselineError, match=rf"expected a key '{key}'"):
                    read(root)
                node[key] = child
                named.append(key)
        return named

    required = {"schema", "hardware_key", "match", "launches", "tests", "updates", "at", "commit", "host"}
    required |= {
        "environment",
        "body_hash",
        "metrics",
        "unit",
        "better",
        "clock",
        "reduce",
        "stat",
        "launch",
        "n",
    }
    required |= {"median", "q1", "q3", "author", "reason"}
    data = baselines().to_json()
    assert set(drop_each(data, data)) == required


def test_a_newer_schema_asks_for_an_upgrade() -> None:
    message = r"schema 3 is newer than this version reads \(2\): upgrade pytest-gpuperf"
    with pytest.raises(BaselineError, match=message):
        read({**baselines().to_json(), "schema": 3, "of_the_future": True})


def test_other_hardware_is_refused() -> None:
    message = (
        r"file\.hardware_key: got '8x-nvidia-h200-nv18', expected '1x-nvidia-t4': "
        r"rename the file to 8x-nvidia-h200-nv18\.json"
    )
    with pytest.raises(BaselineError, match=message):
        Baselines.from_json(baselines().to_json(), PATH, "1x-nvidia-t4")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data(), json_values)
def test_one_hostile_value_anywhere_is_read_or_refused(data: st.DataObject, value: object) -> None:
    root: Any = deepcopy(baselines().to_json())
    node = root
    while True:
        key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = value
    with suppress(BaselineError):
        read(root)


def test_errors_travel_between_processes() -> None:
    error = BaselineError(PATH, "problem", "cure")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == f"baselines '{PATH}': problem: cure"
