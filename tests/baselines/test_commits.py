"""Which commit a record is of, and whether that is what was measured."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.commits import commit_to_race
from pytest_gpuperf.baselines.provenance import UNKNOWN, is_dirty, read_commit
from pytest_gpuperf.baselines.schema import Baselines, LaunchInfo
from tests.baselines.examples import KEY, baselines, launch

OLD, NEW = "a" * 40, "b" * 40


def measured(commit: str, at: str, *, dirty: bool = False) -> LaunchInfo:
    return replace(launch(), commit=commit, at=f"2026-11-{at}T10:00:00Z", dirty=dirty)


@pytest.mark.parametrize(
    ("launches", "commit"),
    [
        ([measured(NEW, "22"), measured(OLD, "21")], NEW),
        ([measured(OLD, "21"), measured(NEW, "22", dirty=True)], OLD),
        ([measured(NEW, "22"), measured(NEW, "23", dirty=True)], NEW),
        ([measured(OLD, "21"), measured(UNKNOWN, "22")], OLD),
        ([measured(OLD, "21"), measured("--upload-pack=x", "22"), measured("", "23")], OLD),
        ([measured(NEW, "22", dirty=True)], None),
        ([], None),
    ],
    ids=["newest", "changed", "both", "unknown", "no-commit", "only-changed", "none"],
)
def test_the_newest_clean_commit_is_raced(launches: list[LaunchInfo], commit: str | None) -> None:
    assert commit_to_race(launches) == commit


def test_a_file_says_of_a_launch_alone_that_its_checkout_had_changes() -> None:
    known = baselines(1.0, 2.0)
    known = replace(known, launches={**known.launches, "launch-1": replace(launch(), dirty=True)})
    data = known.to_json()
    assert isinstance(data["launches"], dict)
    assert ["dirty" in info for info in data["launches"].values()] == [False, True]
    assert Baselines.from_json(data, "x", KEY) == known


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_changes_that_are_not_committed_make_a_checkout_dirty(tmp_path: Path) -> None:
    assert not is_dirty(tmp_path)
    git(tmp_path, "init")
    tracked, within = tmp_path / "tracked.py", tmp_path / "tests"
    tracked.write_text("x = 1\n")
    within.mkdir()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "first")
    (tmp_path / "untracked.py").write_text("x = 1\n")
    assert len(read_commit(tmp_path)) == 40
    assert not is_dirty(tmp_path)
    tracked.write_text("x = 2\n")
    assert is_dirty(tmp_path)
    assert is_dirty(within)
    git(tmp_path, "add", ".")
    assert is_dirty(tmp_path)
    git(tmp_path, "commit", "--message", "second")
    assert not is_dirty(tmp_path)
