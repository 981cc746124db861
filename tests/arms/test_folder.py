"""A race's temporary folder, and those that races which were killed have left."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.arms.folder import RaceFolder, remove_leftovers
from pytest_gpuperf.leases.lock_file import LockFile
from pytest_gpuperf.repository import CannotRace


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of these tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def ended() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        return process.pid


def test_a_folder_is_there_until_it_is_closed(temporary: Path) -> None:
    folder = RaceFolder.new()
    (folder.path / "file").touch()
    assert not remove_leftovers()
    assert folder.path.is_dir()
    folder.close()
    assert not folder.path.exists()


def test_a_leftover_of_a_process_that_has_ended_is_removed(temporary: Path) -> None:
    left, foreign = temporary / f"gpuperf-race-{ended()}-abc", temporary / "gpuperf-race-notes"
    for path in (left, foreign):
        path.mkdir()
    assert remove_leftovers()
    assert not left.exists()
    assert foreign.exists()
    assert not remove_leftovers()


def test_one_whose_owner_lives_in_another_container_is_not(temporary: Path) -> None:
    # There the number is another process's, or none's; the lock is the same.
    folder = temporary / f"gpuperf-race-{ended()}-abc"
    folder.mkdir()
    (folder / "owner").touch()
    with (folder / "owner").open("r+") as file:
        lock = LockFile(file.fileno())
        assert lock.try_lock()
        assert not remove_leftovers()
    assert folder.exists()


def test_what_others_planted_is_left_alone(temporary: Path) -> None:
    linked, piped, whole = (temporary / f"gpuperf-race-{ended()}-{name}" for name in ("a", "b", "c"))
    target = temporary / "made-by-root"
    for path in (linked, piped):
        path.mkdir()
    (linked / "owner").symlink_to(target)
    os.mkfifo(piped / "owner")
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    whole.symlink_to(elsewhere)
    assert not remove_leftovers()
    assert not target.exists()
    assert list(elsewhere.iterdir()) == []
    assert all(os.path.lexists(path) for path in (linked, piped, whole))


def test_a_folder_of_another_user_is_not_ours(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = temporary / f"gpuperf-race-{ended()}-abc"
    left.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)
    assert not remove_leftovers()
    assert list(left.iterdir()) == []


def test_a_temporary_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(
        CannotRace, match=rf"^a race needs a temporary folder, .* in {tmp_path}/gone: got .*: set TMPDIR"
    ):
        RaceFolder.new()
