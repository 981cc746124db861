"""One lock file."""

import os
from pathlib import Path

import pytest

from pytest_gpuperf.leases.lock_file import LockFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def opened(path: Path) -> LockFile:
    return LockFile(os.open(path, os.O_RDWR | os.O_CREAT))


def test_closing_frees_the_lock_though_a_fork_of_another_language_shares_the_file(path: Path) -> None:
    file, other = opened(path), opened(path)
    shared = os.dup(file.descriptor)  # what a fork without exec leaves in the child
    assert file.try_lock()
    assert not other.try_lock()
    file.close()
    assert other.try_lock()
    other.close()
    os.close(shared)


def test_closing_twice_closes_nobody_elses_file(path: Path) -> None:
    file = opened(path)
    file.close()
    other = opened(path)  # has the number that is free now
    file.close()
    file.abandon()
    assert other.try_lock()
    assert file.closed
    with pytest.raises(ValueError, match="the file is closed"):
        file.try_lock()
    other.close()


def test_two_who_look_take_each_other_for_no_owner(path: Path) -> None:
    files = [opened(path), opened(path), opened(path)]
    assert [files[0].try_lock(shared=True), files[1].try_lock(shared=True), files[2].try_lock()] == [True, True, False]
    for file in files:
        file.close()


def test_who_reads_while_another_writes_finds_a_whole_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(path)
    file.write("a long old line")
    monkeypatch.setattr(os, "ftruncate", lambda *_: None)  # the moment between the two calls
    file.write("new")
    assert file.read() == "new"
    file.close()
