"""Ray clusters of hosts that are apart: nodes that cannot be used, and hosts that are lost while a test runs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpuperf.features.everywhere import ray_node
from pytest_gpuperf.features.everywhere.secret import Secret
from tests.everywhere.jobs import Job
from tests.hosts.hosts import Host, hosts, lacking

pytestmark = [
    pytest.mark.skipif(os.environ.get("GPUPERF_TEST_LAUNCHERS") != "1", reason="takes minutes: run make launchers"),
    pytest.mark.skipif(bool(lacking()), reason=lacking() or "it can"),
]
SURVEY = """
import pytest
import torch
from pytest_gpuperf import MiB
from suites.multi_node import reference
from suites.multi_node.programs.hosts import Load
from suites.multi_node.test_hosts import surveyed

LOAD = Load(
    width=64, dtype=torch.float32, copied=MiB, linked=4096, sent=MiB, summed=MiB // 2, samples=5, repeats=1
)

@pytest.mark.ranks(nodes="all", per_node=1, timeout=120)
def test_survey(ranks):
    found = reference.found_slow(LOAD, surveyed(ranks, 4, LOAD))
    print("FOUND", [(slow.part, slow.name) for slow in found if slow.figure == "pairs"])
"""
RAY = ray_node.environment({}, Secret("environment", "0123456789abcdef"), Path("/tmp/ray"))
PORT = 6379
TESTS = """
import time
import pytest
import torch
import torch.distributed as dist

def meet(ctx, seconds):
    end, x = time.monotonic() + seconds, torch.zeros(1)
    while x.item() == 0:
        time.sleep(0.05)
        x.fill_(float(time.monotonic() > end))
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return ctx.node_name

@pytest.mark.ranks(nodes="all", per_node=1)
def test_before(ranks):
    assert len(ranks.run(meet, 0.1)) == 5

@pytest.mark.ranks(nodes="all", per_node=1, timeout=40)
def test_meanwhile(ranks):
    print("MEANWHILE", flush=True)
    ranks.run(meet, 600.0)

@pytest.mark.ranks(2, nodes=2)
def test_after(ranks):
    assert len(set(ranks.run(meet, 0.1))) == 2
"""


def start_ray(made: Sequence[Host], *addresses: str) -> None:
    """Starts Ray by hand, with these addresses of the nodes."""
    for host, address in zip(made, addresses, strict=True):
        command = ray_node.head_command(address, PORT, host.name, 2**30)
        if host is not made[0]:
            command = ray_node.node_command(f"{addresses[0]}:{PORT}", address, host.name, 2**30)
        host.run(*command, env=RAY, timeout=180)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def pytest_on(host: Host, folder: Path) -> tuple[int, str]:
    done = host.run(
        "pytest", "--gpus=0", f"--cluster=10.77.0.1:{PORT}", "test_it.py", env=RAY, cwd=folder, check=False, timeout=300
    )
    return done.returncode, done.stdout


def test_a_node_that_registered_as_its_own_loopback_is_refused(folder: Path) -> None:
    with hosts(2, folder, debian=True) as made:
        start_ray(made, "10.77.0.1", "127.0.1.1")
        status, text = pytest_on(made[0], folder)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "node h2 is in the cluster as 127.0.1.1, which is its own loopback, so other nodes do not reach it" in text


def test_a_host_that_died_shortly_before_is_named(folder: Path) -> None:
    with hosts(3, folder) as made:
        start_ray(made, *(host.address for host in made))
        made[2].kill()
        status, text = pytest_on(made[0], folder)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "node h3 is gone: it was in the cluster when this run began, and Ray's daemon on it has ended, or it" in text


def test_hosts_that_are_cut_off_together_are_named_and_the_next_test_runs(folder: Path) -> None:
    with hosts(5, folder) as made:
        job = Job.on("PET_", made, folder)
        (folder / "test_it.py").write_text(TESTS)
        started = job.start("pytest", "-s", "--gpus=0", "-o", "gpuperf_node_timeout=10", "test_it.py")
        started[0].until("MEANWHILE")
        for host in made[1:4]:
            host.cut()
        status, text = started[0].status(240), started[0].text
        for one in started[1:]:
            one.host.signal("everywhere", signal.SIGKILL)
            one.status()
    assert status == pytest.ExitCode.TESTS_FAILED, text
    assert re.search(r"1 failed, 2 passed", text), text
    for host in made[1:4]:
        assert f"cluster: node {host.name} " in text
    assert "cluster: the run began with 5 nodes and ended with 2" in text


def test_the_survey_of_the_hosts_names_one_whose_link_has_a_tenth_of_the_rate(folder: Path) -> None:
    with hosts(4, folder) as made:
        job = Job.on("PET_", made, folder)
        (folder / "test_it.py").write_text(SURVEY)
        for host in made:
            host.rate("20mbit" if host.name == "h3" else "200mbit")
        started = job.start("pytest", "-s", "--gpus=0", "test_it.py")
        statuses, text = [one.status(240) for one in started], started[0].text
    assert statuses == [0] * 4, text
    assert "FOUND [('host', 'h3')" in text
