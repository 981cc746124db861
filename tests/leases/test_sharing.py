"""GPUs that tests of one run share, and that one who wants them alone gets all the same."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_gpuperf.leases.folder import Folder, LeaseError
from pytest_gpuperf.leases.leases import Leases
from tests.leases.crowd import LEASES, RESOURCES
from tests.leases.owners import DEADLINE, ROOT, Owner
from tests.leases.waiting import until, waiters

Start = Callable[..., Owner]
A, B, C, D = "GPU-a", "GPU-b", "GPU-c", "GPU-d"
RUN = "a run"


@pytest.fixture
def ours(folder: Path) -> Leases:
    """Return the leases of a worker of the run that started the processes."""
    return Leases(folder, run=RUN)


def test_workers_of_a_run_share_gpus(start: Start, ours: Leases) -> None:
    first, second = start(), start()
    assert first.share([A, B], 2) == [A, B]
    assert second.share([A, B], 2, timeout=0) == [A, B]
    with ours.share([A, B], 2, holder="here", timeout=0) as share:
        assert share.resources == (A, B)


def test_another_run_waits_and_is_told_for_whom(start: Start, ours: Leases) -> None:
    other, idle = start("another run"), start("a third run")
    idle.share([A], 1)
    idle.ask("stay", resources=[A])
    other.share([A], 1, holder="test_x.py::test_y")
    told = rf"; GPU-a held by pid {other.pid} of '\S+' on '\S+', 'test_x.py::test_y', for \d s: allow more time"
    with pytest.raises(LeaseError, match=told):  # and idle ranks are not named: nobody waits for them
        ours.share([A], 1, holder="here", timeout=0)
    assert ours.share([A, B], 1, holder="here", timeout=0).resources == (B,)
    other.ask("stay", resources=[A])  # idle ranks are in nobody's way but that of one who wants to be alone
    ours.share([A], 1, holder="here", timeout=0).release()


def test_processes_without_a_run_share_with_nobody(folder: Path) -> None:
    with Leases(folder).share([A], 1, holder="there", timeout=0), pytest.raises(LeaseError, match="GPU-a held by pid"):
        Leases(folder).share([A], 1, holder="here", timeout=0)


def test_one_who_wants_gpus_alone_waits_until_the_last_sharer_has_gone(start: Start, folder: Path) -> None:
    sharers, alone = [start(), start()], start()
    for sharer in sharers:
        sharer.share([A, B], 2)
    alone.acquire([A, B], 2, wait=False)
    until(lambda: waiters(folder) == 1)
    sharers[0].ask("release")
    with pytest.raises(LeaseError, match=rf"GPU-a, GPU-b held by pid {sharers[1].pid} of "):
        Leases(folder).acquire([A, B], 2, holder="here", timeout=0.05)
    sharers[1].ask("release")
    assert alone.answer() == [A, B]


def test_nobody_shares_what_is_held_alone(start: Start, ours: Leases, folder: Path) -> None:
    alone, sharer = start(), start()
    alone.acquire([A], 1)
    sharer.share([A, B], 2, wait=False)
    until(lambda: waiters(folder) == 1)
    with pytest.raises(LeaseError, match=rf"GPU-a held by pid {alone.pid} of .*; 2 of GPU-a, GPU-b to go first to "):
        ours.share([A], 1, holder="here", timeout=0)
    alone.ask("release")
    assert sharer.answer() == [A, B]


def test_later_sharers_wait_behind_one_who_wants_to_be_alone(start: Start, ours: Leases, folder: Path) -> None:
    """Without that, workers that take turns would never leave the GPU to a perf test."""
    first, alone, later = start(), start(), start()
    first.share([A], 1)
    alone.acquire([A], 1, wait=False)
    until(lambda: waiters(folder) == 1)
    with pytest.raises(LeaseError, match=rf"1 of GPU-a to go first to pid {alone.pid} of "):
        ours.share([A], 1, holder="here", timeout=0.05)
    later.share([A], 1, wait=False)
    until(lambda: waiters(folder) == 2)
    first.ask("release")
    assert alone.answer() == [A]
    assert waiters(folder) == 1
    alone.ask("release")
    assert later.answer() == [A]


def test_another_run_is_not_starved_by_workers_that_share(start: Start, ours: Leases, folder: Path) -> None:
    first, other = start(), start("another run")
    first.share([A], 1)
    other.share([A], 1, wait=False)
    until(lambda: waiters(folder) == 1)
    with pytest.raises(LeaseError, match=rf"1 of GPU-a to go first to pid {other.pid} of "):
        ours.share([A], 1, holder="here", timeout=0.05)
    first.ask("release")
    assert other.answer() == [A]


@pytest.mark.parametrize("how", [None, "popen", "fork"])
def test_a_sharer_that_is_killed_is_gone(start: Start, folder: Path, how: str | None) -> None:
    sharer, alone = start(), start()
    sharer.share([A], 1)
    sharer.ask("stay", resources=[A])
    sharer.share([B], 1)
    if how is not None:
        sharer.start_child(how)  # one that is forked has called release, and posts no notice of its own
    alone.acquire([A, B], 2, wait=False)
    until(lambda: waiters(folder) == 1)
    sharer.kill()
    assert alone.answer() == [A, B]
    assert list(folder.glob("*.staying")) == []


def test_a_forked_child_does_not_end_its_parents_share(start: Start, leases: Leases) -> None:
    sharer = start()
    sharer.share([A], 1)
    sharer.start_child("fork")
    with pytest.raises(LeaseError, match=rf"GPU-a held by pid {sharer.pid} of "):
        leases.acquire([A], 1, holder="here", timeout=0.05)


def test_a_stopped_sharer_keeps_its_share(start: Start, leases: Leases) -> None:
    sharer = start()
    sharer.share([A], 1)
    sharer.signal(signal.SIGSTOP)
    with pytest.raises(LeaseError, match=A):
        leases.acquire([A], 1, holder="here", timeout=0.05)


def test_releasing_twice_ends_no_later_share(ours: Leases, leases: Leases) -> None:
    first = ours.share([A], 1, holder="first", timeout=0)
    first.release()
    with ours.share([A], 1, holder="second", timeout=0):
        first.release()
        with pytest.raises(LeaseError, match="second"):
            leases.acquire([A], 1, holder="third", timeout=0)
    leases.acquire([A], 1, holder="third", timeout=0).release()


def test_idle_ranks_elsewhere_stay_while_a_test_runs(ours: Leases, start: Start, leases: Leases) -> None:
    other = start("another run")
    ours.share([A], 1, holder="first", timeout=0)
    ours.stay([A], "first")
    with ours.share([B], 1, holder="second", timeout=0):
        assert ours.staying == {A, B}
        with pytest.raises(
            LeaseError, match=r"; GPU-b held by pid .*'second'.*; GPU-a with idle ranks of pid .*'second'"
        ):
            leases.acquire([A, B], 2, holder="here", timeout=0)
        assert other.share([A, B], 1) == [A]  # beside the idle ones
        other.ask("release")
    assert ours.staying == {A}
    ours.stay([], "second")
    assert ours.staying == frozenset()


def test_sharers_spread_over_the_gpus(start: Start) -> None:
    four = [A, B, C, D]
    assert [start().share(four, 2) for _ in range(4)] == [[A, B], [C, D], [A, B], [C, D]]


def test_the_least_crowded_gpus_come_before_those_with_ranks(start: Start) -> None:
    sharer, crowd = start(), start()
    assert sharer.share([A, B, C], 1, warm=[[B]]) == [B]
    sharer.ask("stay", resources=[B])
    crowd.share([B], 1)
    assert sharer.share([A, B, C], 1, warm=[[B]]) == [A]
    sharer.ask("stay", resources=[A, B])
    start().share([A, C], 2)
    assert sharer.share([A, B, C], 1, warm=[[A], [B]]) == [A]  # as crowded as all others: the ranks used last


def test_a_warm_set_counts_as_a_whole(start: Start, ours: Leases) -> None:
    def warm() -> tuple[str, ...]:
        with ours.share([A, B, C], 2, warm=[{A, C}, {B, C}, {A, B, C}, {"GPU-x"}], holder="here", timeout=0) as share:
            return share.resources

    assert warm() == (A, C)
    other = start()
    other.share([A], 1)
    assert warm() == (B, C)
    other.ask("release")
    other.share([C], 1)
    assert warm() == (A, B)


def test_one_who_chooses_at_the_same_time_is_waited_for(
    start: Start, ours: Leases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are there on A; that its file is locked for a moment is no reason to start others on B."""
    start().share([B], 1)
    real = Folder.lock
    busy = iter([True])

    def lock(self: Folder, name: str) -> object:
        return None if name == f"{A}.lock" and next(busy, False) else real(self, name)

    monkeypatch.setattr(Folder, "lock", lock)
    assert ours.share([A, B], 1, warm=[{A}], holder="here", timeout=DEADLINE).resources == (A,)


def test_one_who_changes_its_notice_is_never_overlooked(
    ours: Leases, leases: Leases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new notice is posted after the look at the names, and the old one is removed before it is opened."""
    share = ours.share([A], 1, holder="test_x", timeout=0)
    real = Folder.look

    def look(self: Folder, name: str) -> str | None:
        if name.endswith(".staying") and ours.staying:
            monkeypatch.setattr(Folder, "look", real)
            ours.stay([A], "test_x")
        return real(self, name)

    monkeypatch.setattr(Folder, "look", look)
    with pytest.raises(LeaseError, match="GPU-a with idle ranks of pid"):
        leases.acquire([A], 1, holder="here", timeout=0)
    share.release()


def test_a_message_names_a_few_of_many(start: Start, leases: Leases) -> None:
    for _ in range(10):
        start().share([A], 1)
    with pytest.raises(LeaseError, match=r"; and 2 more: allow more time") as caught:
        leases.acquire([A], 1, holder="here", timeout=0)
    assert str(caught.value).count("GPU-a held by pid") == 8


def test_a_share_that_cannot_be_posted_locks_nothing(
    ours: Leases, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *names: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(LeaseError, match="No space left"):
            ours.share([A], 1, holder="here", timeout=0)
    leases.acquire([A], 1, holder="there", timeout=0).release()


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "claims"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def test_sharers_never_meet_one_who_is_alone_and_everybody_finishes(folder: Path, claims: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.leases.crowd", str(folder), str(claims), str(seed), RUN],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(6)
    ]
    assert [process.communicate() for process in processes] == [(f"{LEASES}\n", "")] * 6
    assert waiters(folder) == 0
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.lock" for name in RESOURCES]
