"""Processes that take resources from each other's way, wait, die and have children."""

import fcntl
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuperf.leases.folder import LeaseError
from pytest_gpuperf.leases.leases import Leases
from tests.leases.owners import DEADLINE, Owner
from tests.leases.waiting import until, waiters

Start = Callable[..., Owner]
A, B, C = "GPU-a", "GPU-b", "GPU-c"


def test_a_resource_has_one_owner(start: Start, leases: Leases) -> None:
    owner = start()
    assert owner.acquire([A, B], 1) == [A]
    with leases.acquire([A, B], 1, holder="here", timeout=0) as lease:
        assert lease.resources == (B,)
    with pytest.raises(LeaseError, match=A):
        leases.acquire([A], 1, holder="here", timeout=0)
    owner.ask("release")
    leases.acquire([A], 1, holder="here", timeout=0).release()


def test_one_who_waits_is_served_at_the_release(start: Start, leases: Leases, folder: Path) -> None:
    owner = start()
    lease = leases.acquire([A, B], 2, holder="here", timeout=0)
    owner.acquire([A, B], 2, wait=False)
    until(lambda: waiters(folder) == 1)
    lease.release()
    assert owner.answer() == [A, B]
    assert waiters(folder) == 0


def test_a_big_request_goes_before_later_small_ones(start: Start, leases: Leases, folder: Path) -> None:
    big = start()
    first, second = (leases.acquire([name], 1, holder="small", timeout=0) for name in (A, B))
    big.acquire([A, B], 2, wait=False)
    until(lambda: waiters(folder) == 1)
    for name in (A, B):
        first.release()  # what is free by now is for the big one
        with pytest.raises(LeaseError, match="2 of GPU-a, GPU-b to go first to pid"):
            leases.acquire([name], 1, holder="small", timeout=0.05)
    second.release()
    assert big.answer() == [A, B]


def test_waiters_are_served_in_the_order_in_which_they_came(start: Start, leases: Leases, folder: Path) -> None:
    lease = leases.acquire([A], 1, holder="here", timeout=0)
    owners = [start() for _ in range(3)]
    for number, owner in enumerate(owners, 1):
        owner.acquire([A], 1, wait=False)
        until(lambda number=number: waiters(folder) == number)  # type: ignore[misc]
    lease.release()
    for number, owner in enumerate(owners, 1):
        assert owner.answer() == [A]
        assert waiters(folder) == len(owners) - number
        owner.ask("release")


def test_disjoint_requests_do_not_wait_for_each_other(start: Start, leases: Leases, folder: Path) -> None:
    owner = start()
    with leases.acquire([A], 1, holder="here", timeout=0):
        owner.acquire([A, B], 2, wait=False)
        until(lambda: waiters(folder) == 1)
        leases.acquire([C], 1, holder="here", timeout=0).release()
    assert owner.answer() == [A, B]


def test_the_kernel_frees_what_a_killed_owner_held(start: Start, leases: Leases) -> None:
    owner = start()
    owner.acquire([A, B], 2)
    owner.kill()
    leases.acquire([A, B], 2, holder="here", timeout=1.0).release()


def test_a_killed_waiter_is_out_of_the_queue(start: Start, leases: Leases, folder: Path) -> None:
    waiter = start()
    leases.acquire([A], 1, holder="here", timeout=0)
    waiter.acquire([A, B], 2, wait=False)
    until(lambda: waiters(folder) == 1)
    waiter.kill()
    leases.acquire([B], 1, holder="here", timeout=0).release()
    assert waiters(folder) == 0  # the ticket is cleared away


@pytest.mark.parametrize("how", ["popen", "fork_and_exec", "fork"])
def test_a_child_does_not_keep_its_dead_parents_lock(start: Start, leases: Leases, how: str) -> None:
    owner = start()
    owner.acquire([A], 1)
    owner.start_child(how)
    owner.kill()
    leases.acquire([A], 1, holder="here", timeout=1.0).release()


def test_a_forked_child_does_not_free_its_parents_lock(start: Start, leases: Leases, folder: Path) -> None:
    owner = start()
    owner.acquire([A], 1)
    record = (folder / f"{A}.lock").read_text()
    owner.start_child("fork")  # it has called release
    with pytest.raises(LeaseError, match="held by pid"):
        leases.acquire([A], 1, holder="here", timeout=0)
    assert (folder / f"{A}.lock").read_text() == record


def test_a_lease_outlives_its_leases_in_a_forked_child_too(folder: Path) -> None:
    lease = Leases(folder).acquire([A], 1, holder="here", timeout=0)  # nobody keeps the Leases
    pid = os.fork()
    if pid == 0:
        try:
            lease.release()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(LeaseError, match="held by pid"):
        Leases(folder).acquire([A], 1, holder="there", timeout=0)
    lease.release()


def test_a_stopped_owner_keeps_its_lease(start: Start, leases: Leases) -> None:
    owner = start()
    owner.acquire([A], 1)
    owner.signal(signal.SIGSTOP)
    with pytest.raises(LeaseError, match=A):
        leases.acquire([A], 1, holder="here", timeout=0.05)


def test_the_message_at_the_timeout_says_who_and_since_when_and_what_to_do(start: Start, leases: Leases) -> None:
    owner = start()
    owner.acquire([A, B], 2, holder="tests/test_x.py::test_y[2ranks]")
    with pytest.raises(LeaseError) as caught:
        leases.acquire([A, B, C], 2, holder="tests/test_z.py", timeout=0.02)
    assert re.fullmatch(
        rf"wanted 2 of {A}, {B}, {C} for 'tests/test_z\.py', got none within 0\.02 s; "
        rf"{A}, {B} held by pid {owner.pid} of '\S+' on '\S+', 'tests/test_x\.py::test_y\[2ranks\]', for \d+ s: "
        r"allow more time \(gpuperf_lease_timeout\), let fewer processes run at once, name other GPUs in "
        "CUDA_VISIBLE_DEVICES if it is GPUs that are wanted, or end a process that hangs",
        str(caught.value),
    )


def test_many_names_are_shortened(start: Start, leases: Leases) -> None:
    cores = [f"core-{number}" for number in range(64)]
    start().acquire(cores, 64)
    with pytest.raises(
        LeaseError, match=r"64 of 64 from core-0 to core-63 for 'here'.* 64 from core-0 to core-63 held"
    ):
        leases.acquire(cores, 64, holder="here", timeout=0)


def test_waiting_is_told_at_once_and_again(start: Start, leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = start()
    owner.acquire([A], 1, holder="there")
    told: list[str] = []
    with pytest.raises(LeaseError):
        leases.acquire([A], 1, holder="here", timeout=0.05, on_wait=told.append)
    assert len(told) == 1
    assert told[0].startswith(f"waiting for 1 of {A} for 'here'; {A} held by pid {owner.pid} of ")
    monkeypatch.setattr("pytest_gpuperf.leases.leases.NOTICE_SECONDS", 0.01)

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 4:
            owner.tell("release")

    leases.acquire([A], 1, holder="here", timeout=DEADLINE, on_wait=tell).release()
    assert len(told) >= 4


def test_one_who_need_not_wait_is_told_nothing(leases: Leases) -> None:
    told: list[str] = []
    leases.acquire([A], 1, holder="here", timeout=DEADLINE, on_wait=told.append).release()
    assert told == []


def test_an_error_while_waiting_leaves_the_queue(start: Start, leases: Leases, folder: Path) -> None:
    start().acquire([A], 1)

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leases.acquire([A, B], 2, holder="here", timeout=DEADLINE, on_wait=interrupt)
    assert waiters(folder) == 0
    leases.acquire([B], 1, holder="here", timeout=0).release()


def test_timeouts_are_kept(start: Start, leases: Leases) -> None:
    start().acquire([A], 1)
    began = time.monotonic()
    with pytest.raises(LeaseError):
        leases.acquire([A], 1, holder="here", timeout=0.3)
    assert time.monotonic() - began >= 0.3


def test_who_wants_to_be_alone_waits_for_those_who_stay(start: Start, leases: Leases, folder: Path) -> None:
    staying, alone = start(), start()
    staying.acquire([A, B], 1)
    staying.ask("stay", resources=[A])
    staying.ask("release")
    assert staying.ask("wanted_alone", resources=[A]) is False
    leases.share([A, B], 2, holder="here", timeout=0).release()  # beside it
    leases.stay([], "here")
    alone.acquire([A, B], 2, wait=False)
    until(lambda: waiters(folder) == 1)
    assert staying.ask("wanted_alone", resources=[A]) is True
    assert staying.ask("wanted_alone", resources=[C]) is False
    assert staying.ask("wanted_alone", resources=[]) is False
    staying.ask("stay", resources=[])
    assert alone.answer() == [A, B]
    assert staying.ask("wanted_alone", resources=[A]) is False


def test_a_waiter_who_shares_asks_nobody_to_leave(start: Start, leases: Leases, folder: Path) -> None:
    sharer = start()
    lease = leases.acquire([A, B], 2, holder="here", timeout=0)
    sharer.share([B], 1, wait=False)
    until(lambda: waiters(folder) == 1)
    assert not leases.is_wanted_alone([A, B])
    lease.release()
    assert sharer.answer() == [B]


def test_one_who_stays_elsewhere_is_in_nobodys_way(start: Start, folder: Path) -> None:
    staying, alone = start(), start()
    staying.acquire([C], 1)
    staying.ask("stay", resources=[C])
    staying.ask("release")
    assert alone.acquire([A, B], 2, timeout=0) == [A, B]


def test_one_who_stays_and_dies_is_gone(start: Start, folder: Path) -> None:
    staying, alone = start(), start()
    staying.acquire([A], 1)
    staying.ask("stay", resources=[A])
    staying.ask("release")
    staying.kill()
    assert alone.acquire([A], 1, timeout=0) == [A]
    assert list(folder.glob("*.staying")) == []  # the notice is cleared away


def test_who_stays_himself_is_not_in_his_own_way(leases: Leases) -> None:
    with leases.acquire([A], 1, holder="here", timeout=0):
        leases.stay([A], "here")
    leases.acquire([A], 1, holder="here", timeout=0).release()
    leases.stay([], "here")


def test_a_notice_that_cannot_be_posted_leaves_the_last_one_in_place(
    leases: Leases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = leases.acquire([A, B], 2, holder="here", timeout=0)
    leases.stay([A], "here")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *names: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(LeaseError, match="No space left"):
            leases.stay([A, B], "here")
    assert leases.staying == {A}
    lease.release()
    leases.acquire([A], 1, holder="here", timeout=0).release()  # not in its own way
    leases.stay([], "here")
    assert list(folder.glob("*.staying")) == []


@pytest.mark.parametrize("how", ["popen", "fork"])
def test_a_child_does_not_keep_its_dead_parents_notice(start: Start, leases: Leases, how: str) -> None:
    owner = start()
    owner.acquire([A], 1)
    owner.ask("stay", resources=[A])
    owner.start_child(how)
    owner.kill()
    leases.acquire([A], 1, holder="here", timeout=1.0).release()


def test_a_notice_that_says_nothing_is_nobodys(leases: Leases, folder: Path) -> None:
    leases.acquire([A], 1, holder="here", timeout=0).release()
    for name, line in {"1-a": "{}", "2-b": "[" * 9999, "3-c": '{"resources": 1}'}.items():
        (folder / f"{name}.staying").write_text(line)
    with (folder / "1-a.staying").open() as one, (folder / "3-c.staying").open() as other:
        for stream in (one, other):
            fcntl.flock(stream, fcntl.LOCK_EX)
        leases.acquire([A], 1, holder="here", timeout=0).release()
