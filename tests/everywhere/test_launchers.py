"""Each launcher, with real programs on hosts that are apart: a job starts, fails well, is cancelled, loses a node."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_gpuperf.features.everywhere.settings import UNAVAILABLE
from tests.everywhere.jobs import LAUNCHERS, SLEEPS, Job, Process, lacking
from tests.hosts import slurm
from tests.hosts.hosts import Host, hosts

pytestmark = pytest.mark.skipif(
    os.environ.get("GPUPERF_TEST_LAUNCHERS") != "1", reason="takes minutes: run make launchers"
)


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if why := lacking(name):
        pytest.skip(why)
    return name


@pytest.fixture
def job(launcher: str, tmp_path: Path) -> Iterator[Callable[[int], Job]]:
    with ExitStack() as stack:
        yield lambda count: Job.on(launcher, stack.enter_context(hosts(count, tmp_path)), tmp_path)


def cancel(job: Job, started: list[Process]) -> None:
    """Cancels a job as its user, or its cluster, does."""
    if job.launcher == "srun":
        job.hosts[0].run("scancel", "1")
    else:
        for one in started:
            one.host.signal("mpirun" if job.launcher == "mpirun" else "everywhere", signal.SIGTERM)


def end_command(host: Host, number: signal.Signals) -> None:
    """Sends a signal to the command only, whose words its parents have in their command lines as well."""
    (pid,) = (pid for pid, line in host.processes("sleep 3600").items() if line == "sleep 3600")
    os.kill(pid, number)


@pytest.mark.parametrize("per_node", [1, 2])
def test_a_job_starts(job: Callable[[int], Job], launcher: str, per_node: int) -> None:
    if per_node == 2 and launcher in ("PET_", "--head"):
        pytest.skip("this launcher starts one process a node")
    ready = job(4 if per_node == 1 and launcher == "srun" else 2)
    command = ("pytest", "--gpus", "0", "-p", "no:cacheprovider", "test_it.py")
    started = ready.start(*command, per_node=per_node)
    assert [one.status() for one in started] == [0] * len(started), started[0].text
    assert "1 passed" in started[0].text
    assert f"{len(ready.hosts)} nodes (h1, h2" in started[0].text
    for one in started[1:]:
        assert "passed" not in one.text
    for host in ready.hosts:
        assert ready.left(host) == []


def test_a_job_fails_with_the_status_of_its_command(job: Callable[[int], Job], launcher: str) -> None:
    ready = job(2)
    started = ready.start("sh", "-c", "echo command fails; exit 7")
    statuses = [one.status() for one in started]
    assert started[0].text.count("command fails") == 1
    if launcher == "torchrun":  # whose own status is 1; it prints that of its process
        assert statuses == [1, 1]
        assert all("(exitcode: 7)" in one.text for one in started), started[0].text
    else:
        assert set(statuses) == {7}, started[0].text
    for host in ready.hosts:
        assert ready.left(host) == []


def test_a_cancelled_job_leaves_nothing(job: Callable[[int], Job], launcher: str) -> None:
    ready = job(2)
    started = ready.start(*SLEEPS)
    started[0].until("command runs")
    assert all(any("raylet" in line for line in host.processes().values()) for host in ready.hosts)
    cancel(ready, started)
    assert all(one.status() != 0 for one in started)
    for host in ready.hosts:
        assert ready.left(host) == []
    if launcher == "srun":
        assert slurm.left(ready.hosts[0]) == ""


def test_a_job_names_a_node_that_it_loses(job: Callable[[int], Job], launcher: str) -> None:
    ready = job(3)
    started = ready.start(*SLEEPS)
    started[0].until("command runs")
    ready.hosts[2].kill()
    if launcher in ("PET_", "--head"):
        started[0].until("node h3 is lost: silent for 5 s; the command goes on without it")
        end_command(ready.hosts[0], signal.SIGTERM)
        assert [one.status() for one in started[:2]] == [143, 143]
        started[2].status()
    else:  # the launcher may end the job sooner than the node is missed
        started[0].until("lost" if launcher == "torchrun" else "h3 is lost")
        cancel(ready, started[:2])
        if launcher == "mpirun":  # which waits for its daemon on the lost host
            started[0].until("the run was cancelled (SIGTERM)")
            ready.hosts[0].signal("mpirun", signal.SIGKILL)
            ready.hosts[0].signal("ssh -F", signal.SIGKILL)  # its own, to that host
        assert all(one.status() != 0 for one in started)
    for host in ready.hosts[:2]:
        assert ready.left(host) == []


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Job]:
    if why := lacking("PET_"):
        pytest.skip(why)
    with hosts(2, tmp_path) as made:
        yield Job.on("PET_", made, tmp_path)


def test_a_host_that_is_cut_off_ends_what_it_has(pods: Job) -> None:
    started = pods.start(*SLEEPS)
    started[0].until("command runs")
    pods.hosts[1].cut()
    assert started[1].status() == UNAVAILABLE
    assert "error: host h2: the first node is gone (silent for 5 s), so this node ends its processes" in started[1].text
    assert pods.left(pods.hosts[1]) == []
    started[0].until("node h2 is lost: silent for 5 s; the command goes on without it")
    end_command(pods.hosts[0], signal.SIGKILL)
    assert started[0].status() == 128 + signal.SIGKILL
    assert pods.left(pods.hosts[0]) == []


@pytest.mark.parametrize("killed", ["-m pytest_gpuperf everywhere", "everywhere.keeper"])
@pytest.mark.parametrize("on", [0, 1])
def test_whatever_is_killed_on_a_host_nothing_is_left(pods: Job, killed: str, on: int) -> None:
    started = pods.start(*SLEEPS)
    started[0].until("command runs")
    assert pods.hosts[on].signal(killed, signal.SIGKILL) == 1
    if on == 1:  # the command goes on
        if killed == "everywhere.keeper":
            started[1].until("keeper")
        else:
            started[0].until("node h2 is lost: connection closed; the command goes on without it")
        end_command(pods.hosts[0], signal.SIGTERM)
        assert started[0].status() == 143
    assert all(one.status() != 0 for one in started)
    for host in pods.hosts:
        assert pods.left(host) == []


def test_two_jobs_run_on_the_same_hosts_at_once(pods: Job) -> None:
    first = pods.start(*SLEEPS)
    first[0].until("command runs")
    second = pods.start("pytest", "--gpus", "0", "-p", "no:cacheprovider", "test_it.py", env={"PET_RDZV_ID": "b"})
    assert [one.status() for one in second] == [0, 0], second[0].text
    assert "1 passed" in second[0].text
    assert first[0].process.poll() is None
    end_command(pods.hosts[0], signal.SIGTERM)
    assert [one.status() for one in first] == [143, 143]
    for host in pods.hosts:
        assert pods.left(host) == []
