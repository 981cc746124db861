"""A recording that cannot be written where it belongs: it goes to a temporary folder, or stays in its journal."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.json_files import load
from tests.fake_gpus import machine_of
from tests.run.halves import Halves, Said
from tests.run.test_recording import KEY, SOFTWARE, busbw, options, passed, record, stored

__all__ = ["options"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


def test_a_recording_whose_folder_cannot_be_written_is_kept_elsewhere(options: Said, elsewhere: Path) -> None:
    measurements = Halves(replace(options, launches=1), machine_of(8), options.baselines.parent)
    measurements.begin_launch(1, SOFTWARE)
    passed(measurements, 1, "test_a", {"busbw": busbw(300e9)})
    options.baselines.write_text("a file in the folder's place")
    saved = measurements.save()
    assert saved is not None
    assert saved.problem is not None
    assert saved.problem.startswith(f"baselines '{options.baselines / KEY}.json': cannot be written: got ")
    assert Path(saved.where).name == f"{KEY}.json"
    assert Path(saved.where).parents[1] == elsewhere
    kept = load(Path(saved.where), KEY)
    assert kept is not None
    assert list(kept.tests) == ["test_a"]


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_recording_that_can_be_kept_nowhere_stays_in_its_journal(
    options: Said, elsewhere: Path, interrupted: bool
) -> None:
    elsewhere.rmdir()
    options = replace(options, launches=1)
    measurements = Halves(options, machine_of(8), options.baselines.parent)
    measurements.recorded.plan({"test_a": "body"})
    measurements.begin_launch(1, SOFTWARE)
    passed(measurements, 1, "test_a", {"busbw": busbw(300e9)})
    broken = options.baselines / f"{KEY}.json"
    broken.write_text("broken meanwhile")
    saved = measurements.save(interrupted=interrupted)
    lines = measurements.closing_lines()
    why = rf"baselines '{broken}': got no valid JSON .*; nor can it be kept in a temporary folder: got FileNotFound.*"
    assert re.fullmatch(
        f"no baselines written: {'interrupted' if interrupted else why}; what was measured is kept in "
        f"{measurements.recorded.journal_path}: go on with the same command and --resume",
        lines[-1],
    )
    assert interrupted or (saved is not None and saved.failed)
    broken.unlink()
    again = Halves(replace(options, resume=True), machine_of(8), options.baselines.parent)
    assert again.recorded.plan({"test_a": "body"}) == {("test_a", 1)}
    saved = again.save()
    assert saved is not None
    assert (saved.tests, saved.problem) == (1, None)
    assert not again.recorded.journal_path.exists()


def test_a_recording_without_a_journal_that_can_be_kept_nowhere_says_so(options: Said, elsewhere: Path) -> None:
    elsewhere.rmdir()
    measurements = Halves(replace(options, launches=1), machine_of(8), options.baselines.parent)
    measurements.begin_launch(1, SOFTWARE)
    passed(measurements, 1, "test_a", {"busbw": busbw(300e9)})
    options.baselines.write_text("a file in the folder's place")
    measurements.save()
    lines = measurements.closing_lines()
    assert re.match(r"baselines '.*': cannot be written: .*; nor can it be kept in a temporary folder: got", lines[-2])
    assert lines[-1] == "no baselines written"


def test_a_file_that_broke_meanwhile_is_left_as_it_is(options: Said, elsewhere: Path) -> None:
    measurements = Halves(replace(options, launches=1), machine_of(8), options.baselines.parent)
    measurements.begin_launch(1, SOFTWARE)
    passed(measurements, 1, "test_a", {"busbw": busbw(300e9)})
    options.baselines.mkdir()
    broken = options.baselines / f"{KEY}.json"
    broken.write_text("broken meanwhile")
    saved = measurements.save()
    assert saved is not None
    assert saved.problem is not None
    assert "got no valid JSON" in saved.problem
    assert broken.read_text() == "broken meanwhile"
    assert Path(saved.where).parents[1] == elsewhere


def test_a_file_that_another_power_limit_came_into_meanwhile_is_left(options: Said, elsewhere: Path) -> None:
    measurements = Halves(options, machine_of(8, watts=600.0), options.baselines.parent)
    measurements.load([])
    for launch in (1, 2):
        measurements.begin_launch(launch, SOFTWARE)
        passed(measurements, launch, "test_a", {"busbw": busbw(100e9)})
    record(options, "test_b")
    saved = measurements.save()
    assert saved is not None
    assert saved.problem is not None
    assert "got GPUs with power_limit_w 600.0, expected power_limit_w 700.0" in saved.problem
    assert list(stored(options).tests) == ["test_b"]
    assert Path(saved.where).parents[1] == elsewhere
    kept = load(Path(saved.where), KEY)
    assert kept is not None
    assert list(kept.tests) == ["test_a"]
