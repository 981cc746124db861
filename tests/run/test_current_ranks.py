"""What a run owns: ranks on GPUs that are leased, and how they come and go."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from pytest_gpuperf.features.adopted.torch_testing_internals import PRELOAD_IF_USED as OF_HARNESSES
from pytest_gpuperf.hardware.device import HardwareError
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.site import Site
from pytest_gpuperf.leases.folder import LeaseError
from pytest_gpuperf.leases.leases import Leases
from pytest_gpuperf.markers import RanksMarker
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks import forkserver_client as client_module
from pytest_gpuperf.ranks.failures import RankDied
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.pools import Pools
from pytest_gpuperf.ranks.spec import PoolSpec
from pytest_gpuperf.run import session as session_module
from pytest_gpuperf.run.current_test import CurrentTest
from pytest_gpuperf.run.session import Session, make_this_machine
from tests.fake_gpus import machine_of
from tests.leases.waiting import until, waiters


class StandingPools(Pools):
    """Ranks that are on two GPUs until they are retired."""

    there = True

    @property
    def gpus(self) -> frozenset[str]:
        return frozenset({"GPU-0", "GPU-1"}) if self.there else frozenset()

    def retire_all(self, but: PoolSpec | None = None, *, wait: bool = True) -> None:
        self.there = False


def holding(session: Session, request: pytest.FixtureRequest, launch: int | None = None) -> None:
    """The session is in the middle of a test on both of its GPUs."""
    session.ranks._current = CurrentTest(
        item=request.node,
        identity="test_x",
        marker=RanksMarker((2,)),
        timeout=60,
        group="group",
        seed=1,
        launch=launch,
        world_size=2,
        gpus=session.supply.leasing.gpus(2, "test_x"),
    )


def session_on(machine: Machine, config: pytest.Config) -> Session:
    """The parts of a run on a machine."""
    options = Options.from_config(config)
    return Session.of(config, options, make_this_machine(config, options, machine))


@pytest.fixture
def standing(pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session whose ranks are on two GPUs."""
    monkeypatch.setattr(session_module, "Pools", StandingPools)
    config = pytester.parseconfig("-o", f"gpuperf_leases={tmp_path / 'leases'}")
    session = session_on(machine_of(2), config)
    yield session
    session.close()


def alone(tmp_path: Path, timeout: float = 0.05) -> None:
    """Somebody else measures on both GPUs.

    Raises:
        LeaseError: they are not his alone.
    """
    leases = Leases(tmp_path / "leases")
    leases.acquire(("GPU-0", "GPU-1"), 2, holder="perf", timeout=timeout).release()


@pytest.mark.parametrize(
    ("launch", "last", "stay"),
    [(None, False, True), (None, True, False), (1, False, False)],
    ids=["between tests", "after the last", "after perf tests"],
)
def test_ranks_stay_on_their_gpus_between_correctness_tests_and_the_folder_says_so(
    request: pytest.FixtureRequest, standing: Session, tmp_path: Path, launch: int | None, last: bool, stay: bool
) -> None:
    holding(standing, request, launch)
    standing.ranks.end(last=last)
    if stay:
        with pytest.raises(LeaseError, match=r"GPU-0, GPU-1 with idle ranks of .*'test_x'"):
            alone(tmp_path)
    else:
        alone(tmp_path)
    standing.close()
    alone(tmp_path)


def test_ranks_leave_at_the_end_of_a_test_when_somebody_waits_to_be_alone(
    request: pytest.FixtureRequest, standing: Session, tmp_path: Path
) -> None:
    holding(standing, request)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(alone, tmp_path, timeout=20)
        until(lambda: waiters(tmp_path / "leases") == 1)
        standing.ranks.end()
        waiting.result(timeout=20)
    assert not standing.supply.host.gpus


def test_what_a_perf_test_leaves_to_the_next_one_is_let_go_of_for_the_arms_of_a_race(
    request: pytest.FixtureRequest, standing: Session, tmp_path: Path
) -> None:
    standing.launch.begin(1, {})
    holding(standing, request, launch=1)
    standing.ranks.end(keep_lease=True)
    with pytest.raises(LeaseError, match=r"GPU-0, GPU-1"):
        alone(tmp_path)
    standing.ranks.vacate()
    alone(tmp_path)
    assert standing.launch.number is None  # the next test begins a launch of fresh processes
    assert standing.launch.software  # that the verdicts of this one may need
    standing.launch.begin(1, {})
    assert standing.launch.number == 1


def test_ranks_leave_after_the_last_test_though_that_uses_no_gpus(
    request: pytest.FixtureRequest, standing: Session, tmp_path: Path
) -> None:
    holding(standing, request)
    standing.ranks.end()
    standing.ranks._current = CurrentTest(
        item=request.node,
        identity="test_y",
        marker=RanksMarker(()),
        timeout=60,
        group="",
        seed=1,
        launch=None,
        world_size=None,
    )
    standing.ranks.end(last=True)
    alone(tmp_path)


def test_a_gpu_that_tells_no_memory_is_leased_no_longer_than_its_test(
    request: pytest.FixtureRequest, standing: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding(standing, request)
    monkeypatch.setattr(
        standing.supply.leasing, "memory_is_scarce", mock.Mock(side_effect=HardwareError("GPU-0 is lost"))
    )
    with pytest.raises(HardwareError, match=r"^GPU-0 is lost$"):
        standing.ranks.end()
    Leases(tmp_path / "leases").share(("GPU-0", "GPU-1"), 2, holder="another", timeout=0).release()


def test_ranks_of_a_tests_own_end_with_it_though_one_of_them_has_died(
    request: pytest.FixtureRequest, standing: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding(standing, request)
    standing.ranks.current.marker = RanksMarker((2,), isolation="process", env=(("A", "1"),))
    retired = mock.Mock()
    monkeypatch.setattr(standing.supply.host, "settle", mock.Mock(side_effect=RankDied("rank 0 was killed")))
    monkeypatch.setattr(standing.supply.host, "retire_with", retired)
    with pytest.raises(RankDied, match=r"^rank 0 was killed$"):
        standing.ranks.end()
    retired.assert_called_once_with((("A", "1"),))


def test_ranks_start_with_what_every_rank_needs_and_what_the_tests_have_imported(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = mock.Mock(wraps=ForkserverClient)
    monkeypatch.setattr(session_module, "ForkserverClient", client)
    monkeypatch.setattr(session_module, "PRELOAD_IF_USED", client_module.PRELOAD_IF_USED)
    session_on(Machine((), None, False), pytestconfig).close()
    if_used = {**client_module.PRELOAD_IF_USED, **OF_HARNESSES}
    client.assert_called_once_with(client_module.PRELOAD, if_used, mock.ANY)


@pytest.mark.parametrize(
    ("options", "launch", "bound"),
    [((), 1, True), (("--no-numa-binding",), 1, False), ((), None, False)],
    ids=["perf test", "unbound", "other test"],
)
def test_ranks_that_measure_run_on_their_gpus_nodes(
    pytester: pytest.Pytester,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    launch: int | None,
    bound: bool,
) -> None:
    cores = {f"GPU-{index}": frozenset({2 * index, 2 * index + 1}) for index in range(2)}
    machine = machine_of(2)
    monkeypatch.setattr(type(machine.devices), "cores", lambda self, uuid: cores[uuid])
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    config = pytester.parseconfig("-o", f"gpuperf_leases={tmp_path / 'leases'}", *options)
    session = session_on(machine, config)
    try:
        holding(session, request, launch)
        spec = session.supply.spec(session.ranks.current, 2)
        assert spec == PoolSpec(
            2, ("GPU-0", "GPU-1"), cores=tuple(cores.values()) if bound else (), timed=launch is not None
        )
    finally:
        session.close()


@pytest.mark.parametrize(
    ("launch", "measured", "leased"),
    [(None, True, False), (1, False, False), (1, True, True)],
    ids=["correctness", "not timed", "timed"],
)
def test_on_cpus_only_a_timed_test_leases_cores(
    pytester: pytest.Pytester,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    launch: int | None,
    measured: bool,
    leased: bool,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    config = pytester.parseconfig("-o", f"gpuperf_leases={tmp_path / 'leases'}", "-o", "gpuperf_lease_timeout=0.05")
    session = session_on(machine_of(2), config)
    monkeypatch.setattr(session.launch, "measured", measured)
    test = CurrentTest(request.node, "test_x", RanksMarker((2,), device="cpu"), 60, "group", 1, launch, 2)
    try:
        with Leases(tmp_path / "leases").acquire(("core-0",), 1, holder="another run", timeout=0):
            if leased:
                with pytest.raises(LeaseError, match=r"core-0 held by .*'another run'"):
                    session.supply.lease(test, 2)
            else:
                session.supply.lease(test, 2)
    finally:
        session.close()


@pytest.mark.parametrize("cluster", [False, True], ids=["here", "on nodes of a cluster"])
def test_only_ranks_of_this_machine_are_at_its_numa_nodes(
    pytester: pytest.Pytester, tmp_path: Path, cluster: bool
) -> None:
    config = pytester.parseconfig("-o", f"gpuperf_leases={tmp_path / 'leases'}")
    options = Options.from_config(config)
    nodes = make_this_machine(config, options, machine_of(2))
    if cluster:
        nodes = mock.Mock(wraps=nodes, machine=nodes.machine, hash_seed="", lacks=None, option="", no_race="")
        nodes.site.side_effect = lambda: Site("node-0, node-1", "2 GPUs", {})
    session = Session.of(config, options, nodes)
    try:
        session.launch.begin(1, {"torch": "2.13.0"})
        assert session.launch.software["torch"] == "2.13.0"
        assert session.launch.software.get("numa binding") == (None if cluster else "off")
    finally:
        session.close()


@pytest.mark.parametrize("goes_on", [True, False], ids=["another test follows", "the launch is over"])
def test_in_a_launch_nobody_waits_for_the_ranks_that_the_next_test_does_without(
    request: pytest.FixtureRequest, standing: Session, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    holding(standing, request, launch=1)
    standing.ranks.current.marker = RanksMarker((2,), isolation="process", env=(("A", "1"),))
    retired = mock.Mock()
    monkeypatch.setattr(standing.supply.host, "retire_with", retired)
    standing.ranks.end(keep_lease=goes_on)
    retired.assert_called_once_with((("A", "1"),), wait=not goes_on)


@pytest.mark.parametrize("launch", [None, 1])
def test_only_within_a_launch_ranks_of_a_tests_own_start_while_those_before_end(
    request: pytest.FixtureRequest, standing: Session, monkeypatch: pytest.MonkeyPatch, launch: int | None
) -> None:
    holding(standing, request, launch)
    standing.ranks.current.marker = RanksMarker((2,), isolation="process")
    retired = mock.Mock()
    monkeypatch.setattr(standing.supply.host, "retire", retired)
    monkeypatch.setattr(standing.supply.host, "get", mock.Mock())
    monkeypatch.setattr(standing.supply, "lease", mock.Mock())
    monkeypatch.setattr(standing.ranks, "_prepare_launch", mock.Mock())
    standing.ranks.prepare()
    ((_, kwargs),) = retired.call_args_list
    assert kwargs == {"wait": launch is None}
