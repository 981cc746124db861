"""What one process sees of its leases and their files."""

import fcntl
import json
import os
import pwd
import re
import socket
import stat
import time
from pathlib import Path
from unittest import mock

import pytest

from pytest_gpuperf.leases.folder import LeaseError
from pytest_gpuperf.leases.leases import Leases
from pytest_gpuperf.leases.lock_file import LockFile
from tests.leases.waiting import waiters

A, B = "GPU-a", "GPU-b"


def test_two_leases_of_one_process_exclude_each_other(leases: Leases, folder: Path) -> None:
    with leases.acquire([A], 1, holder="here", timeout=0):
        for other in (leases, Leases(folder)):
            with pytest.raises(LeaseError, match=f"pid {os.getpid()} of"):
                other.acquire([A], 1, holder="here", timeout=0)


def test_releasing_twice_frees_no_later_lease(leases: Leases) -> None:
    first = leases.acquire([A], 1, holder="first", timeout=0)
    first.release()
    with leases.acquire([A], 1, holder="second", timeout=0):
        first.release()
        with pytest.raises(LeaseError, match="second"):
            leases.acquire([A], 1, holder="third", timeout=0)
    assert first.resources == (A,)


def test_the_file_says_who_holds_until_the_release(leases: Leases, folder: Path) -> None:
    file = folder / f"{A}.lock"
    with leases.acquire([A], 1, holder="a::b[ü\n]", timeout=0):
        record = json.loads(file.read_text())
        assert time.time() - 60 < record.pop("since") <= time.time()
        assert record == {
            "pid": os.getpid(),
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "host": socket.gethostname(),
            "holder": "a::b[ü\n]",
            "used_bytes": None,
        }
    assert file.read_text() == ""


def test_a_shorter_record_leaves_nothing_of_a_longer_one(leases: Leases, folder: Path) -> None:
    folder.mkdir()
    (folder / f"{A}.lock").write_text("x" * 5000)
    with leases.acquire([A], 1, holder="here", timeout=0):
        assert json.loads((folder / f"{A}.lock").read_text())["holder"] == "here"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_every_user_may_use_folder_and_files_whatever_the_umask(leases: Leases, folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        leases.acquire([A], 1, holder="here", timeout=0).release()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / f"{A}.lock").stat().st_mode) == 0o666


def test_a_folder_that_was_there_keeps_its_mode(leases: Leases, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    leases.acquire([A], 1, holder="here", timeout=0).release()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_existing_file_is_opened_without_o_creat(
    leases: Leases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Under fs.protected_regular the kernel refuses O_CREAT for another user's file in a sticky folder.
    leases.acquire([A], 1, holder="here", timeout=0).release()
    real = os.open

    def protected(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", protected)
    leases.acquire([A], 1, holder="here", timeout=0).release()
    with pytest.raises(LeaseError, match="Permission denied"):
        leases.acquire([B], 1, holder="here", timeout=0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_shares_the_folder(leases: Leases, folder: Path, tmp_path: Path) -> None:
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.stat().st_uid == os.getuid() and parent != Path("/tmp") and Path("/tmp") in parent.parents:
            parent.chmod(0o755)
    lease = leases.acquire([A], 1, holder="root's", timeout=0)
    leases.acquire([B], 1, holder="root's", timeout=0).release()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:  # no new interpreter: another user might not be allowed to read its files
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            others = Leases(folder)
            with others.acquire([A, B], 1, holder="nobody's", timeout=0) as got:
                answer = [*got.resources]
            try:
                others.acquire([A], 1, holder="nobody's", timeout=0)
            except LeaseError as error:
                answer.append(str(error))
        except BaseException as error:
            answer = [repr(error)]
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    with open(reading) as stream:
        taken, refused = json.load(stream)
    assert taken == B
    assert "of 'root' on" in refused
    assert "root's" in refused
    lease.release()


def test_a_link_in_a_files_place_is_not_followed(leases: Leases, folder: Path, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("mine")
    folder.mkdir()
    (folder / f"{A}.lock").symlink_to(treasure)
    with pytest.raises(LeaseError, match=r"GPU-a\.lock.*remove it"):
        leases.acquire([A], 1, holder="here", timeout=0)
    assert treasure.read_text() == "mine"


def test_another_name_of_a_file_in_a_files_place_is_refused(leases: Leases, folder: Path, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("mine")
    treasure.chmod(0o644)
    folder.mkdir()
    (folder / f"{A}.lock").hardlink_to(treasure)
    with pytest.raises(LeaseError, match=r"GPU-a\.lock': got another name of a file that is not shared, "):
        leases.acquire([A], 1, holder="here", timeout=0)
    assert treasure.read_text() == "mine"


def test_a_pipe_in_a_files_place_is_refused(leases: Leases, folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / f"{A}.lock")
    with pytest.raises(LeaseError, match=r"GPU-a\.lock': got a special file, expected a plain one: remove it"):
        leases.acquire([A], 1, holder="here", timeout=0)


@pytest.mark.parametrize("what", ["file", "link"])
def test_a_folder_that_is_none(folder: Path, leases: Leases, tmp_path: Path, what: str) -> None:
    if what == "file":
        folder.write_text("")
    else:
        folder.symlink_to(tmp_path)
    got = {"file": "a file", "link": "a symbolic link"}[what]
    with pytest.raises(LeaseError, match=f"got {got}, expected a folder: remove it, or choose another folder"):
        leases.acquire([A], 1, holder="here", timeout=0)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LeaseError, match=r"NotADirectoryError.*or choose another folder"):
        Leases(tmp_path / "file" / "leases").acquire([A], 1, holder="here", timeout=0)


def test_a_folder_that_one_may_not_write(leases: Leases, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may do anything
    with pytest.raises(LeaseError, match="got mode 755 and no right to write, expected 1777: let its owner run chmod"):
        leases.acquire([A], 1, holder="here", timeout=0)


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o2770, True), (0o1777, False)])
def test_another_users_folder_without_the_sticky_bit(
    leases: Leases, folder: Path, monkeypatch: pytest.MonkeyPatch, mode: int, refused: bool
) -> None:
    folder.mkdir()
    folder.chmod(mode)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    if not refused:
        leases.acquire([A], 1, holder="here", timeout=0).release()
        return
    said = f"got mode {mode:o} of user {user}, in which users can remove each other's locks, expected the sticky bit"
    with pytest.raises(LeaseError, match=f"{re.escape(repr(str(folder)))}: {said}: let its owner run chmod 1777"):
        leases.acquire([A], 1, holder="here", timeout=0)


def test_a_lock_that_a_foreign_process_shares_is_refused_by_name(
    leases: Leases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_gpuperf.leases.leases.SHARED_SECONDS", 0.01)
    leases.acquire([A, B], 2, holder="here", timeout=0).release()
    named = rf"GPU-a\.lock'? locked as shared by pid {os.getpid()}"
    with open(folder / f"{A}.lock") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(LeaseError, match=f"{named}, which no process of pytest-gpuperf does, expected locks of"):
            leases.acquire([A, B], 2, holder="here", timeout=60)
        with pytest.raises(LeaseError, match=f"got none within 0 s; .*{named}: allow more time"):
            leases.acquire([A], 1, holder="here", timeout=0)
        leases.acquire([A, B], 1, holder="here", timeout=0).release()  # another one does


def test_a_lock_that_is_only_looked_at_is_waited_for(
    leases: Leases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_gpuperf.leases.leases.SHARED_SECONDS", 0.01)
    held = leases.acquire([A], 1, holder="here", timeout=0)
    with pytest.raises(LeaseError, match=r"got none within 0\.2 s; GPU-a held by"):
        Leases(folder).acquire([A], 1, holder="there", timeout=0.2)
    held.release()


def test_a_full_disk_is_told_and_frees_what_was_locked(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(LeaseError, match="No space left on device"):
            leases.acquire([A], 1, holder="here", timeout=0)
    leases.acquire([A], 1, holder="here", timeout=0).release()


def test_a_file_that_cannot_be_cleared_is_freed_with_all_others(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = leases.acquire([A, B], 2, holder="here", timeout=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", mock.Mock(side_effect=OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            lease.release()
    leases.acquire([A, B], 2, holder="here", timeout=0).release()


def test_a_file_that_is_removed_while_it_is_opened_is_made_anew(
    leases: Leases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as a cleaner of /tmp does; the lock of a file without a name would exclude nobody
    leases.acquire([A], 1, holder="here", timeout=0).release()
    real = LockFile.try_lock
    removed: list[Path] = []

    def cleaned(file: LockFile, *, shared: bool = False) -> bool:
        if not removed:
            removed.append(folder / f"{A}.lock")
            removed[0].unlink()
        return real(file, shared=shared)

    monkeypatch.setattr(LockFile, "try_lock", cleaned)
    with leases.acquire([A], 1, holder="here", timeout=0):
        assert removed
        with pytest.raises(LeaseError, match=A):
            leases.acquire([A], 1, holder="there", timeout=0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        '{"pid": 1}',
        "[" * 60_000,
        f'{{"pid": 1, "user": "a", "host": "b", "holder": "c", "since": {"9" * 400}}}',
    ],
)
def test_a_holder_whose_record_is_none_is_unknown(leases: Leases, folder: Path, text: str) -> None:
    with leases.acquire([A], 1, holder="here", timeout=0):
        (folder / f"{A}.lock").write_text(text)
        with pytest.raises(LeaseError, match="GPU-a held by somebody unknown"):
            leases.acquire([A], 1, holder="there", timeout=0)


@pytest.mark.parametrize("text", ["", "nonsense", "{}", '{"candidates": 1}'])
def test_a_ticket_that_is_none_blocks_nobody(leases: Leases, folder: Path, text: str) -> None:
    leases.acquire([A], 1, holder="here", timeout=0).release()
    with (folder / "0-odd.waiting").open("w") as stream:
        stream.write(text)
        stream.flush()
        fcntl.flock(stream, fcntl.LOCK_EX)
        leases.acquire([A], 1, holder="here", timeout=0).release()
        assert waiters(folder) == 1


def test_control_characters_of_others_do_not_reach_the_terminal(leases: Leases) -> None:
    with (
        leases.acquire([A], 1, holder="\x1b[2Jboo", timeout=0),
        pytest.raises(LeaseError, match=r"'\\x1b\[2Jboo'") as caught,
    ):
        leases.acquire([A], 1, holder="\x1bhere", timeout=0)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("candidates", "count", "message"),
    [
        ([A, B], 3, "count: got 3, expected 1 to 2"),
        ([], 1, "count: got 1, expected 1 to 0"),
        ([A], 0, "count: got 0"),
        ([A, A], 1, "expected each once"),
        (["../GPU"], 1, r"got \['\.\./GPU'\], expected names"),
        ([".hidden"], 1, "expected names"),
        ([""], 1, "expected names"),
    ],
)
def test_requests_that_cannot_be_met(leases: Leases, candidates: list[str], count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        leases.acquire(candidates, count, holder="here", timeout=0)


def test_nothing_stays_open(leases: Leases) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    for _ in range(3):
        with leases.acquire([A, B], 1, holder="here", timeout=0):
            leases.stay([A], "here")
            leases.is_wanted_alone([A])
            leases.stay([], "here")
            with pytest.raises(LeaseError):
                leases.acquire([A, B], 2, holder="here", timeout=0.01)
        with leases.share([A, B], 1, holder="here", timeout=0):
            leases.stay([A], "here")
        leases.stay([], "here")
    assert opened() == before


def test_a_leak_of_descriptors_removes_nobodys_ticket(
    leases: Leases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases.acquire([A], 1, holder="here", timeout=0).release()
    (folder / "0-odd.waiting").touch()

    def exhausted(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", exhausted)
        with pytest.raises(LeaseError, match="Too many open files"):
            leases.acquire([A], 1, holder="here", timeout=0)
    assert waiters(folder) == 1


def test_a_removed_folder_has_no_waiters(leases: Leases, folder: Path) -> None:
    lease = leases.acquire([A], 1, holder="here", timeout=0)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert not leases.is_wanted_alone([A])
    lease.release()
