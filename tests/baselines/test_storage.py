"""Files of baselines on disk."""

import json
import os
import pickle
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuperf.baselines import files, json_files
from pytest_gpuperf.baselines.json_files import BaselineWriteError, Files, load, save, update
from pytest_gpuperf.baselines.schema import BaselineError, Baselines, TestBaseline
from pytest_gpuperf.baselines.storage import Storage
from tests.baselines.examples import KEY, TEST, any_baselines, baselines, metric_baseline, update_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "baselines" / f"{KEY}.json"


@given(any_baselines)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_saved_file_loads_as_it_was(path: Path, original: Baselines) -> None:
    path.unlink(missing_ok=True)
    save(path, original)
    assert load(path, KEY) == original


def test_no_file_is_no_baselines(path: Path) -> None:
    assert load(path, KEY) is None


def test_a_file_is_made_to_be_reviewed(path: Path) -> None:
    save(path, baselines(356.123456789e9))
    text = path.read_text()
    assert text.endswith("}\n")
    assert '"median": 356120000000.0' in text
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1) + "\n"


def test_a_file_has_the_mode_that_the_umask_gives(path: Path) -> None:
    save(path, baselines())
    plain = path.with_name("plain")
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_save_leaves_the_file_and_a_hidden_lock(path: Path) -> None:
    save(path, baselines())
    assert {entry.name for entry in path.parent.iterdir()} - {f".{path.name}.lock"} == {path.name}


DEEP = b"[" * 100_000 + b"]" * 100_000

SPOILED = [
    pytest.param(b"", r"got an empty file, expected JSON", id="empty"),
    pytest.param(b" \n", r"got an empty file, expected JSON", id="blank"),
    pytest.param(b'{"schema": 1, "tests"', r"got no valid JSON \(.*line 1 column", id="truncated"),
    pytest.param(b"<html>", r"got no valid JSON", id="html"),
    pytest.param(b"\xff\xfe{}", r"got bytes that are not UTF-8 \(.*0xff", id="bytes"),
    pytest.param(b'{"schema": NaN}', r"got no valid JSON \(NaN is no JSON number\)", id="nan"),
    pytest.param(b'{"schema": -Infinity}', r"\(-Infinity is no JSON number\)", id="infinity"),
    pytest.param(b'{"a": 1, "a": 2}', r"\(key 'a' stands twice in one object\)", id="duplicate"),
    pytest.param(DEEP, r"got values nested too deeply, expected baselines", id="deep"),
    pytest.param(b'{"schema": ' + b"9" * 5000 + b"}", r"got no valid JSON", id="digits"),
    pytest.param(b"[]", r"file: got \[\], expected an object", id="list"),
    pytest.param(b"{}", r"file: got \[\], expected a key 'schema'", id="no-keys"),
    pytest.param(b'{"schema": 3}', r"schema 3 is newer", id="newer"),
]


@pytest.mark.parametrize(("content", "message"), SPOILED)
def test_a_spoiled_file_is_named_and_never_overwritten(path: Path, content: bytes, message: str) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(BaselineError, match=message) as caught:
        load(path, KEY)
    assert str(caught.value).startswith(f"baselines {str(path)!r}: ")
    assert caught.value.cure
    with pytest.raises(BaselineError, match=message):
        save(path, baselines())
    assert path.read_bytes() == content


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_are_taken_for_baselines(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(BaselineError):
        load(path, KEY)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_file_cut_anywhere_is_refused(path: Path, data: st.DataObject) -> None:
    path.unlink(missing_ok=True)
    save(path, baselines())
    whole = path.read_bytes().rstrip()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(BaselineError):
        load(path, KEY)


def test_a_folder_in_the_files_place_is_said(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(BaselineError, match=r"cannot be read: got IsADirectoryError.*: make it a readable file, or"):
        load(path, KEY)


def test_a_file_that_may_not_be_read_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, flags: int, *, follow: bool) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "open_regular", refuse)
    path.parent.mkdir()
    path.touch()
    with pytest.raises(BaselineError, match=r"cannot be read: got PermissionError\(13, 'Permission denied'\): make it"):
        load(path, KEY)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        BaselineWriteError,
        match=r"cannot be written: got .*Error.*: make the folder writable, or choose another",
    ):
        save(tmp_path / "file" / "x.json", baselines())


def test_a_disk_that_fills_up_keeps_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(path, baselines())
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BaselineWriteError, match=r"cannot be written: got OSError\(28, 'No space left on device'\)"):
        save(path, baselines(1.0))
    assert path.read_bytes() == before
    assert not list(path.parent.glob(".*.tmp"))


def test_a_writer_that_hangs_is_not_waited_for_forever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "LOCK_SECONDS", 0.05)
    path.parent.mkdir()
    with (
        filelock.FileLock(path.with_name(f".{path.name}.lock")),
        pytest.raises(BaselineWriteError, match=r"cannot be written: got Timeout"),
    ):
        save(path, baselines())


def test_update_gives_the_stored_baselines_and_saves_the_changed(path: Path) -> None:
    seen = []

    def change(stored: Baselines | None) -> Baselines:
        seen.append(stored)
        return baselines(float(len(seen)))

    assert update(path, KEY, change) == baselines(1.0)
    assert update(path, KEY, change) == load(path, KEY) == baselines(2.0)
    assert seen == [None, baselines(1.0)]


def test_concurrent_updates_lose_nothing(path: Path) -> None:
    save(path, baselines())
    entry = TestBaseline("body", {"busbw": metric_baseline(1.0)})

    def add(name: str) -> None:
        def change(stored: Baselines | None) -> Baselines:
            assert stored is not None
            return stored.replace_tests({name: entry}, {}, update_of(name))

        update(path, KEY, change)

    threads = [threading.Thread(target=add, args=(f"test-{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = load(path, KEY)
    assert stored is not None
    assert set(stored.tests) == {TEST, *(f"test-{index}" for index in range(8))}


@pytest.fixture
def target(path: Path) -> Path:
    """The path is a link to it, in another folder."""
    target = path.parent.parent / "shared" / "h200.json"
    target.parent.mkdir()
    path.parent.mkdir()
    path.symlink_to(os.path.join("..", "shared", "h200.json"))
    return target


def test_a_link_is_written_through(path: Path, target: Path) -> None:
    save(target, baselines())
    save(path, baselines(2.0))
    assert path.is_symlink()
    assert load(target, KEY) == load(path, KEY) == baselines(2.0)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_link_to_nothing_yet_makes_its_target(path: Path, target: Path) -> None:
    target.parent.rmdir()
    save(path, baselines())
    assert path.is_symlink()
    assert load(target, KEY) == baselines()


def test_writers_by_a_link_and_by_its_target_wait_for_each_other(
    path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "LOCK_SECONDS", 0.05)
    with (
        filelock.FileLock(target.with_name(f".{target.name}.lock")),
        pytest.raises(BaselineWriteError, match=r"cannot be written: got Timeout"),
    ):
        save(path, baselines())


@pytest.mark.parametrize(
    "write", [lambda path: save(path, baselines(2.0)), lambda path: json_files.replace(path, "text")]
)
def test_a_disk_that_fills_up_keeps_a_links_target(
    path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object]
) -> None:
    save(target, baselines())
    before = target.read_bytes()

    def full(descriptor: int) -> None:
        # Beside the target: only within a file system is it replaced at once.
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BaselineWriteError, match=f"{target.resolve()}.*No space left"):
        write(path)
    assert (path.is_symlink(), target.read_bytes()) == (True, before)
    assert not list(target.parent.glob(".*.tmp"))


def test_results_are_written_through_a_link_too(path: Path, target: Path) -> None:
    json_files.replace(path, "text")
    assert path.is_symlink()
    assert target.read_text() == "text"


@pytest.mark.parametrize("write", [lambda path: save(path, baselines()), lambda path: json_files.replace(path, "text")])
def test_a_path_that_the_system_refuses_cannot_be_written(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir()
    with pytest.raises(BaselineWriteError, match=r"cannot be written: got OSError\(36, 'File name too long'\)"):
        write(path.with_name("x" * 300))


def test_a_link_to_itself_is_left_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(path.name)
    with pytest.raises(BaselineError, match=r"cannot be read: got OSError\(40.*make it a readable file, or move it"):
        save(path, baselines())
    with pytest.raises(BaselineWriteError, match=r"cannot be written: got OSError\(40"):
        json_files.replace(path, "text")
    assert path.is_symlink()


def test_a_change_that_raises_changes_nothing_and_frees_the_lock(path: Path) -> None:
    save(path, baselines())

    def change(stored: Baselines | None) -> Any:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        update(path, KEY, change)
    save(path, baselines(2.0))
    assert load(path, KEY) == baselines(2.0)


def test_a_change_keeps_the_hardware(path: Path) -> None:
    message = "change made baselines of '8x-nvidia-h200-nv18', expected '1x-nvidia-t4': keep the key"
    with pytest.raises(ValueError, match=message):
        update(path, "1x-nvidia-t4", lambda _: baselines())
    assert not path.exists()


def test_write_errors_travel_between_processes() -> None:
    error = BaselineWriteError("x.json", OSError(28, "No space left on device"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_folder_of_files_is_a_storage(tmp_path: Path) -> None:
    kept: Storage = Files(tmp_path)
    assert kept.load(KEY) is None
    assert kept.update(KEY, lambda stored: baselines() if stored is None else None) == baselines()
    assert kept.load(KEY) == load(Path(kept.where(KEY)), KEY) == baselines()


def test_what_a_killed_writer_left_is_removed_by_the_next_one(path: Path) -> None:
    save(path, baselines())
    for name in (f".{path.name}.0123.tmp", f".{path.name}.tmp"):
        path.with_name(name).touch()
    other = path.with_name(".other.json.0123.tmp")
    other.touch()
    save(path, baselines(2.0))
    assert list(path.parent.glob(".*.tmp")) == [other]
