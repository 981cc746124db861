"""Memory that a dead owner leaves behind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpuperf.hardware.device import HardwareError
from pytest_gpuperf.leases.leases import Leases
from pytest_gpuperf.leases.memory import SLACK_BYTES
from tests.leases.owners import Owner

A, B, CORE = "GPU-a", "GPU-b", "core-0"
IDLE = 600 * 1024**2
BUSY = 90 * 1024**3


class Driver:
    """Tells used memory; a dead process's memory comes back after some questions."""

    def __init__(self) -> None:
        self.later = {A: [IDLE], B: [IDLE]}
        self.asked: list[str] = []

    def used(self, uuid: str) -> int:
        self.asked.append(uuid)
        values = self.later[uuid]
        return values.pop(0) if len(values) > 1 else values[0]


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def measuring(folder: Path, driver: Driver) -> Leases:
    return Leases(folder, driver.used)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpuperf.leases.leases.RETURN_SECONDS", 0.1)


def die_holding(folder: Path, driver: Driver) -> None:
    """Leaves what an owner leaves that dies: a record, and no lock."""
    lease = Leases(folder, driver.used).acquire([A], 1, holder="dead", timeout=0)
    record = (folder / f"{A}.lock").read_text()
    lease.release()
    (folder / f"{A}.lock").write_text(record)


def recorded(folder: Path, name: str = A) -> int | None:
    used: int | None = json.loads((folder / f"{name}.lock").read_text())["used_bytes"]
    return used


def test_the_memory_of_a_dead_owner_is_awaited(measuring: Leases, folder: Path, driver: Driver) -> None:
    die_holding(folder, driver)
    driver.later[A] = [BUSY, BUSY, BUSY, IDLE + SLACK_BYTES]
    with measuring.acquire([A], 1, holder="here", timeout=0) as lease:
        assert driver.later[A] == [IDLE + SLACK_BYTES]
        assert lease.unreturned == ()
        assert recorded(folder) == IDLE  # not what was within the slack: it would add up


def test_a_killed_process_leaves_its_record(
    measuring: Leases, folder: Path, driver: Driver, start: Callable[[], Owner]
) -> None:
    die_holding(folder, driver)
    owner = start()
    assert owner.acquire([A], 1) == [A]  # this one does not measure, and hands on what it found
    owner.kill()
    assert recorded(folder) == IDLE
    driver.later[A] = [BUSY, IDLE]
    measuring.acquire([A], 1, holder="here", timeout=0).release()
    assert driver.later[A] == [IDLE]


def test_memory_that_does_not_come_back_is_told_and_awaited_once(
    measuring: Leases, folder: Path, driver: Driver, impatient: None
) -> None:
    die_holding(folder, driver)
    driver.later[A] = [BUSY]
    with measuring.acquire([A, B], 2, holder="here", timeout=0) as lease:
        assert lease.unreturned == (A,)
        assert recorded(folder) == BUSY
        assert lease.await_memory(timeout=0) == ()


def test_nothing_is_awaited_after_a_release(measuring: Leases, folder: Path, driver: Driver) -> None:
    measuring.acquire([A], 1, holder="here", timeout=0).release()
    driver.later[A] = [BUSY, BUSY]
    with measuring.acquire([A], 1, holder="here", timeout=0) as lease:
        assert recorded(folder) == BUSY
        assert lease.unreturned == ()
    assert driver.asked == [A, A]


def test_one_who_dies_while_it_waits_leaves_the_dead_ones_measure(folder: Path, driver: Driver) -> None:
    die_holding(folder, driver)

    def dies(uuid: str) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Leases(folder, dies).acquire([A], 1, holder="here", timeout=0)
    assert recorded(folder) == IDLE
    driver.later[A] = [BUSY, IDLE]
    Leases(folder, driver.used).acquire([A], 1, holder="here", timeout=0).release()  # and no lock
    assert driver.later[A] == [IDLE]


def test_the_owner_awaits_the_memory_of_ranks_that_it_ended(measuring: Leases, driver: Driver) -> None:
    with measuring.acquire([A, B], 2, holder="here", timeout=0) as lease:
        driver.later[A] = [BUSY, BUSY, IDLE]
        assert lease.await_memory() == ()
        driver.later[B] = [BUSY]
        assert lease.await_memory(timeout=0.1) == (B,)
        assert lease.await_memory(but=[B]) == ()  # where ranks stay


def test_without_a_reader_nothing_is_awaited(leases: Leases, folder: Path, driver: Driver) -> None:
    die_holding(folder, driver)
    driver.later[A] = [BUSY]
    with leases.acquire([A], 1, holder="here", timeout=0) as lease:
        assert lease.await_memory() == ()
        assert lease.unreturned == ()


def test_cores_are_not_asked_for_memory(measuring: Leases, driver: Driver) -> None:
    with measuring.acquire([CORE], 1, holder="here", timeout=0) as lease:
        assert lease.await_memory() == ()
    assert driver.asked == []


def test_a_gpu_that_does_not_answer_is_not_kept(folder: Path, leases: Leases) -> None:
    def lost(uuid: str) -> int:
        raise HardwareError("lost")

    with pytest.raises(HardwareError, match="lost"):
        Leases(folder, lost).acquire([A], 1, holder="here", timeout=0)
    leases.acquire([A], 1, holder="here", timeout=0).release()


@pytest.fixture
def sharing(folder: Path, driver: Driver) -> Leases:
    return Leases(folder, driver.used, run="a run")


def test_one_who_is_alone_awaits_the_memory_of_ranks_that_shared(
    sharing: Leases, measuring: Leases, driver: Driver
) -> None:
    sharing.share([A], 1, holder="first", timeout=0).release()
    sharing.stay([A], "first")
    driver.later[A] = [BUSY]
    with sharing.share([A], 1, holder="second", timeout=0):
        pass
    sharing.stay([], "second")
    driver.later[A] = [BUSY, BUSY, IDLE]
    with measuring.acquire([A], 1, holder="here", timeout=0) as lease:
        assert lease.unreturned == ()
    assert driver.later[A] == [IDLE]


def test_the_first_sharer_awaits_the_memory_of_a_dead_owner_and_later_ones_nothing(
    sharing: Leases, folder: Path, driver: Driver, start: Callable[..., Owner]
) -> None:
    die_holding(folder, driver)
    driver.later[A] = [BUSY, BUSY, IDLE]
    with sharing.share([A], 1, holder="first", timeout=0) as first:
        assert driver.later[A] == [IDLE]
        assert first.unreturned == ()
        driver.asked.clear()
        with Leases(folder, driver.used, run="a run").share([A], 1, holder="second", timeout=0) as second:
            assert second.unreturned == ()
        assert driver.asked == []
    assert recorded(folder) == IDLE


def test_a_sharer_awaits_memory_where_nobody_else_is(
    sharing: Leases, folder: Path, driver: Driver, start: Callable[..., Owner]
) -> None:
    other = start()
    with sharing.share([A, B], 2, holder="here", timeout=0) as share:
        driver.later[A] = [BUSY, BUSY, IDLE]
        assert share.await_memory() == ()
        assert driver.later[A] == [IDLE]
        driver.later[A] = driver.later[B] = [BUSY]
        other.share([B], 1)
        assert share.await_memory(timeout=0.1) == (A,)  # on B it is the other's
        assert share.await_memory(but=[A]) == ()  # where ranks stay


def test_a_sharer_who_came_later_awaits_what_the_first_one_found(
    sharing: Leases, driver: Driver, start: Callable[..., Owner]
) -> None:
    sharing.share([A], 1, holder="first", timeout=0)
    sharing.stay([A], "first")
    driver.later[A] = [BUSY]
    with sharing.share([A], 1, holder="second", timeout=0) as share:
        assert share.await_memory(timeout=0.1) == (A,)
        driver.later[A] = [BUSY, IDLE]
        assert share.await_memory() == ()
