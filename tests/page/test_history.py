"""A file of baselines over the commits of a real repository."""

import json
import subprocess
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.schema import Baselines, LaunchFigure, LaunchInfo, MetricBaseline, TestBaseline
from pytest_gpuperf.features.page.history import read_history

KEY = "2x-gpu"


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


def commit(path: Path, text: str) -> None:
    path.write_text(text)
    git(path.parent, "add", path.name)
    git(path.parent, "commit", "-m", "x", "--allow-empty")


def stored(center: float) -> str:
    metric = MetricBaseline("s", "lower", "", (LaunchFigure("l", 9, center),))
    launches = {"l": LaunchInfo("2026-11-20T10:00:00Z", "c", "h", {})}
    return json.dumps(Baselines(KEY, {}, launches, {"t.py::test_a": TestBaseline("h", {"time": metric})}).to_json())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    folder = tmp_path / "baselines"
    folder.mkdir()
    return folder


def test_each_commit_that_moved_a_centre_is_a_point(repository: Path) -> None:
    path = repository / f"{KEY}.json"
    for text in (stored(1.0), stored(1.0) + "\n", "{broken", stored(0.5)):
        commit(path, text)
    found = read_history(path, KEY)
    assert list(found) == [("t.py::test_a", "time")]
    centers = found["t.py::test_a", "time"]
    assert [one.center for one in centers] == [1.0, 0.5]
    assert all(len(one.commit) == 40 and one.at.startswith("20") for one in centers)


def test_without_commits_or_git_there_is_no_history(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = repository / f"{KEY}.json"
    path.write_text(stored(1.0))
    assert read_history(path, KEY) == {}
    commit(path, stored(1.0))
    assert read_history(path, KEY) != {}
    assert read_history(tmp_path_factory.mktemp("plain") / f"{KEY}.json", KEY) == {}
    monkeypatch.setenv("PATH", "")
    assert read_history(path, KEY) == {}
