"""References are made of baselines, and those of the package are those that its baselines make."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.match import Scalar
from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.baselines.schema import BaselineError, Baselines
from pytest_gpuperf.features.day_zero.references import making
from pytest_gpuperf.features.day_zero.references.schema import References
from pytest_gpuperf.features.day_zero.references.shelf import DATA
from tests.baselines import examples
from tests.baselines.examples import KEY, TEST

KIND: dict[str, Scalar] = {"gpu_name": "NVIDIA H200", "cc": "9.0", "mem_gib": 140, "power_limit_w": 700.0}
ROOT = Path(__file__).resolve().parent.parent.parent


def baselines() -> Baselines:
    stored = examples.baselines()
    return replace(stored, match={**stored.match, **KIND})


def test_the_packages_references_are_what_its_baselines_make(tmp_path: Path) -> None:
    making.main(ROOT / "baselines", tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    brought = {path.name: path.read_bytes() for path in DATA.glob("*.json")}
    assert made == brought, "baselines have changed: run make references"
    assert sum(map(len, brought.values())) < 1_000_000


def test_a_file_says_where_and_when_its_launches_come_from() -> None:
    (references,) = making.make_references([baselines()]).values()
    source = references.sources[KEY]
    stored = baselines()
    assert source.gpu_count == stored.match["gpu_count"]
    assert (source.launches, source.machines) == (
        len(stored.launches),
        len({one.gpus for one in stored.launches.values()}),
    )
    ats = sorted(info.at[:10] for info in stored.launches.values())
    assert (source.first, source.last) == (ats[0], ats[-1])


def test_a_known_regression_is_no_reference() -> None:
    stored = baselines()
    entry = stored.tests[TEST]
    name, metric = next(iter(entry.metrics.items()))
    known = {name: KnownRegression("known", date(2099, 1, 1), metric.center)}
    tests = {**stored.tests, TEST: replace(entry, expected=known)}
    (references,) = making.make_references([replace(stored, tests=tests)]).values()
    assert name not in references.figures[KEY][TEST]


def test_gpus_of_several_kinds_make_none() -> None:
    stored = baselines()
    mixed = replace(stored, match={**stored.match, "gpu_name": "NVIDIA H100+NVIDIA H200"})
    assert making.make_references([mixed]) == {}


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    ((name, references),) = making.make_references([baselines()]).items()
    path = tmp_path / name
    path.write_text(json.dumps(references.to_json()))
    assert References.load(path) == references
    assert References.load(tmp_path / "absent.json") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"references": 99}, r"references' schema 99 is newer than this version reads \(1\): upgrade pytest-gpuperf"),
        ({"kind": 3}, r"file.kind: got 3, expected .*: install this version of pytest-gpuperf again, or make the file"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    (references,) = making.make_references([baselines()]).values()
    data = references.to_json()
    assert isinstance(data, dict)
    path = tmp_path / "of.json"
    path.write_text(json.dumps({**data, **change}))
    with pytest.raises(BaselineError, match=message):
        References.load(path)
