"""What a test leases of the machine, and when it lets go of it."""

import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.leases import leasing as leasing_module
from pytest_gpuperf.leases.folder import LeaseError
from pytest_gpuperf.leases.leases import Leases
from pytest_gpuperf.leases.leasing import Leasing
from pytest_gpuperf.leases.memory import await_return
from tests.fake_gpus import gpu, link
from tests.hardware.fake_devices import FakeDevices
from tests.leases.waiting import until, waiters

UUIDS = ("GPU-0", "GPU-1", "GPU-2")
Make = Callable[..., Leasing]
Gpus: TypeAlias = tuple[str, ...]
Others: TypeAlias = Callable[[], Collection[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases"


@pytest.fixture
def make(folder: Path) -> Make:
    """Leasing of a run of 3 GPUs, of a machine of 4."""

    def leasing(
        tell: Callable[[str], None] = lambda text: None,
        timeout: float = 60,
        leave: Callable[[], None] = lambda: None,
        used: Callable[[str], int] = lambda uuid: 0,
        run: str | None = None,
        others: Gpus = ("GPU-9",),
    ) -> Leasing:
        gpus = tuple(map(gpu, range(3)))
        everything = (*UUIDS, *others)
        machine = Machine(gpus, link(3), False, everything=everything, devices=FakeDevices(gpus, used=used))
        return Leasing(machine, folder, timeout=timeout, tell=tell, leave=leave, run=run)

    return leasing


def free(folder: Path, *names: str) -> bool:
    """Whether somebody else could have all of these."""
    try:
        Leases(folder).acquire(names, len(names), holder="somebody else", timeout=0).release()
    except LeaseError:
        return False
    return True


def test_a_test_has_as_many_gpus_as_it_has_ranks_and_others_the_rest(make: Make, folder: Path) -> None:
    leasing = make()
    assert leasing.gpus(2, "test_x") == UUIDS[:2]
    assert not free(folder, "GPU-0")
    assert not free(folder, "GPU-1")
    assert free(folder, "GPU-2", "GPU-9")
    leasing.release()
    assert free(folder, *UUIDS)
    leasing.release()  # again does nothing


def test_gpus_with_ranks_are_taken_again_while_no_others_are_less_crowded(make: Make) -> None:
    first, second = make(run="a run"), make(run="a run")
    assert first.gpus(1, "a") == ("GPU-0",)
    assert second.gpus(1, "b") == ("GPU-1",)
    first.release()
    second.release()
    assert second.gpus(1, "b", [("GPU-1",)]) == ("GPU-1",)
    assert first.gpus(2, "a") == ("GPU-0", "GPU-2")
    assert second.gpus(1, "c") == ("GPU-1",)


def test_workers_of_a_run_share_its_gpus_and_another_run_waits(make: Make) -> None:
    first, second, other = make(run="a run"), make(run="a run"), make(timeout=0.05)
    assert first.gpus(3, "a") == second.gpus(3, "b") == UUIDS
    with pytest.raises(LeaseError, match="GPU-0, GPU-1, GPU-2 held by"):
        other.gpus(1, "c")


def test_a_share_of_all_gpus_does_not_do_for_a_perf_test(make: Make) -> None:
    leasing = make(run="a run", others=())
    leasing.gpus(3, "test_x")
    assert leasing.machine("test_perf") == UUIDS
    with pytest.raises(LeaseError, match="GPU-0, GPU-1, GPU-2 held by"):
        make(run="a run", timeout=0.05).gpus(1, "test_y")


def test_cores_of_a_timed_test_are_shared_with_nobody(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    first, second = make(run="a run"), make(run="a run", timeout=0.05)
    first.cores(2, "test_perf")
    with pytest.raises(LeaseError, match="core-0, core-1 held by"):
        second.cores(1, "test_x")
    first.cores(1, "test_y")
    second.cores(1, "test_x")


def test_a_run_whose_tests_want_as_many_keeps_its_lease(make: Make, folder: Path) -> None:
    leasing = make()
    assert leasing.gpus(2, "a") == leasing.gpus(2, "b")
    assert leasing.gpus(3, "c") == UUIDS
    assert leasing.gpus(1, "d") == ("GPU-0",)
    assert free(folder, "GPU-1", "GPU-2")


def test_a_run_whose_tests_want_more_ends_its_ranks_before_it_lets_go(make: Make, folder: Path) -> None:
    free_when_they_left: list[bool] = []
    leasing = make(leave=lambda: free_when_they_left.append(free(folder, "GPU-0")))
    leasing.gpus(1, "test_x")
    assert leasing.gpus(3, "test_y") == UUIDS
    assert free_when_they_left == [False]


def test_a_perf_test_has_the_whole_machine_and_runs_on_the_runs_own_gpus(make: Make, folder: Path) -> None:
    leasing = make()
    assert leasing.machine("test_x") == UUIDS
    assert not free(folder, "GPU-9")


def test_memory_of_ranks_that_a_test_without_gpus_ends_is_awaited(make: Make) -> None:
    used = {uuid: [0] for uuid in (*UUIDS, "GPU-9")}

    def used_memory(uuid: str) -> int:
        return used[uuid].pop(0) if len(used[uuid]) > 1 else used[uuid][0]

    leasing = make(leave=lambda: used.update({"GPU-1": [2**34, 2**34, 0]}), used=used_memory)
    leasing.machine("test_perf")
    leasing.cores(1, "test_perf_on_cpus")
    assert used["GPU-1"] == [0]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpuperf.leases.leases.RETURN_SECONDS", 0.05)
    monkeypatch.setattr("pytest_gpuperf.leases.lease.await_return", await_return_soon)


def await_return_soon(due: Mapping[str, int], used: Callable[[str], int], timeout: float, others: Others) -> Gpus:
    return await_return(due, used, 0.05, others)


@pytest.mark.usefixtures("impatient")
def test_memory_that_is_not_back_is_told(make: Make) -> None:
    told: list[str] = []
    used = dict.fromkeys((*UUIDS, "GPU-9"), 0)
    leasing = make(told.append, used=lambda uuid: used[uuid])
    leasing.gpus(2, "test_x")
    used["GPU-1"] = 2**34
    leasing.release(await_memory=True)
    assert told == ["memory of ranks that have ended did not come back on GPU-1"]
    leasing.machine("test_perf")
    assert told[1:] == ["memory of ranks that have ended is not back on GPU-1"]


def test_no_more_cores_are_leased_than_there_are(make: Make, folder: Path) -> None:
    cores = [f"core-{core}" for core in sorted(os.sched_getaffinity(0))]
    leasing = make()
    leasing.cores(len(cores) + 1, "test_x")
    assert not any(free(folder, core) for core in cores)
    leasing.release()
    if len(cores) > 1:
        leasing.cores(1, "test_x")
        assert sum(free(folder, core) for core in cores) == len(cores) - 1


def test_a_short_wait_is_not_worth_telling(make: Make) -> None:
    told: list[str] = []
    make().gpus(2, "test_first")
    with pytest.raises(LeaseError):
        make(told.append, timeout=0.05).gpus(2, "test_b")
    assert told == []


@pytest.fixture
def tell_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing_module, "_QUIET", 0.0)


@pytest.mark.usefixtures("tell_at_once")
def test_who_waits_longer_than_the_ini_key_says_is_told_who_holds_what(make: Make, folder: Path) -> None:
    told: list[str] = []
    make().gpus(2, "test_a.py::test_first")
    with pytest.raises(LeaseError, match=r"^wanted 2 of GPU-0, GPU-1, GPU-2 for 'test_b', got none within 0\.05 s; "):
        make(told.append, timeout=0.05).gpus(2, "test_b")
    (line,) = told
    assert line.startswith("waiting for 2 of GPU-0, GPU-1, GPU-2 for 'test_b'; GPU-0, GPU-1 held by ")
    assert "test_a.py::test_first" in line


def test_gpus_with_ranks_come_before_gpus_without(make: Make) -> None:
    leasing = make()
    assert leasing.gpus(2, "a", [("GPU-1", "GPU-2")]) == ("GPU-1", "GPU-2")
    leasing.release()
    assert leasing.gpus(2, "b", [("GPU-0", "GPU-1"), ("GPU-1", "GPU-2")]) == ("GPU-0", "GPU-1")  # in this order


def test_ranks_that_stay_leave_when_a_perf_test_waits_for_the_machine(make: Make) -> None:
    """One of the two waits in a thread; what they know of each other is in the folder alone."""
    left: list[str] = []
    staying, perf = make(leave=lambda: left.append("ranks")), make()
    staying.gpus(2, "test_x")
    staying.release(staying=("GPU-0", "GPU-1"))
    staying.make_way()
    assert left == []  # nobody asks for it
    with ThreadPoolExecutor(1) as threads:
        leased = threads.submit(perf.machine, "test_perf")
        while not left:
            assert not leased.done()
            staying.make_way()
        assert leased.result(timeout=20) == UUIDS
    assert left == ["ranks"]
    staying.make_way()
    assert left == ["ranks"]


def test_who_waits_for_others_makes_way_too(make: Make, folder: Path) -> None:
    left: list[str] = []
    staying, perf, owner = make(leave=lambda: left.append("ranks")), make(), make()
    staying.gpus(1, "test_x")
    staying.release(staying=("GPU-0",))
    owner.gpus(1, "test_owner", [("GPU-1",)])
    with ThreadPoolExecutor(2) as threads:
        leased = threads.submit(perf.machine, "test_perf")
        until(lambda: waiters(folder) == 1)
        waits = threads.submit(staying.gpus, 3, "test_y")
        until(lambda: waiters(folder) == 2)
        owner.release()
        assert leased.result(timeout=20) == UUIDS
        assert left == ["ranks"]
        perf.release()
        assert waits.result(timeout=20) == UUIDS


@pytest.mark.usefixtures("tell_at_once")
def test_a_perf_test_is_told_whose_idle_ranks_it_waits_for(make: Make) -> None:
    told: list[str] = []
    staying = make()
    staying.gpus(1, "test_x.py::test_idle")
    staying.release(staying=("GPU-0",))
    with pytest.raises(LeaseError, match="GPU-0 with idle ranks of pid "):
        make(told.append, timeout=0.05).machine("test_perf")
    assert "test_x.py::test_idle" in told[0]
    make().gpus(3, "test_correct")  # they are in nobody else's way


def test_a_run_that_ends_stays_nowhere(make: Make) -> None:
    staying = make()
    staying.gpus(1, "test_x")
    staying.release(staying=("GPU-0",))
    staying.close()
    assert make(timeout=0.05).machine("test_perf") == UUIDS


def test_a_fixture_has_the_gpus_of_the_test_that_it_is_for(pytester: pytest.Pytester, eight_gpus: None) -> None:
    pytester.makepyfile("""
        import pytest
        from pytest_gpuperf.plugin import SESSION

        @pytest.fixture
        def ran(ranks, pytestconfig):
            ranks.run(lambda ctx: None)
            return len(pytestconfig.stash[SESSION].ranks.current.gpus)

        @pytest.fixture
        def backend(ranks):
            return ranks.backend

        @pytest.mark.ranks(2)
        def test_run(ran):
            assert ran == 2

        @pytest.mark.ranks(2)
        def test_backend(backend):
            assert backend == "nccl"

        @pytest.mark.ranks(2, device="cpu")
        def test_on_cpus(ran, backend):
            assert (ran, backend) == (0, "gloo")
    """)
    pytester.runpytest("--gpus=4").assert_outcomes(passed=3)
