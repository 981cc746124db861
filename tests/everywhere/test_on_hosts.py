"""Runs on two hosts that are apart: one whole run, and what preflight says about real faults of hosts and links."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuperf.features.everywhere.settings import UNAVAILABLE
from tests.everywhere.jobs import Job, lacking
from tests.hosts.hosts import hosts

pytestmark = pytest.mark.skipif(bool(lacking("PET_")), reason=lacking("PET_") or "it can")
REFUSED = {"RAY_ADDRESS": "10.0.0.9:6379"}
"""With it preflight says all it has to say, and Ray does not start."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("job")
    with hosts(2, folder) as made:
        yield Job.on("PET_", made, folder)


def refused(job: Job, *options: str, env: dict[str, str] | None = None) -> tuple[str, str]:
    started = job.start("false", options=options, env={**REFUSED, **(env or {})})
    assert [one.status() for one in started] == [UNAVAILABLE] * 2, started[0].text
    for host in job.hosts:
        assert job.left(host) == []
    return started[0].text, started[1].text


def test_pytest_runs_on_all_hosts_and_nothing_is_left(job: Job) -> None:
    (job.folder / "test_fails.py").write_text("def test_fails() -> None:\n    assert not 'this test fails'\n")
    started = job.start("pytest", "--gpus", "0", "-p", "no:cacheprovider", "test_it.py", "test_fails.py")
    assert [one.status() for one in started] == [1, 1], started[0].text
    assert "1 failed, 1 passed" in started[0].text
    assert "gpuperf: 2 nodes (h1, h2) by the pod's PET_ variables over eth0, each with no GPU" in started[0].text
    assert started[1].text == ""
    for host in job.hosts:
        assert job.left(host) == []


def test_hosts_without_a_fault_have_no_findings(job: Job) -> None:
    text, _ = refused(job)
    assert text.count("gpuperf: error: node h") == 2  # that of RAY_ADDRESS, on both
    assert "warning" not in text


def test_a_firewall_is_found_before_ray_starts(job: Job) -> None:
    job.hosts[1].drop("tcp dport 32768-60999 tcp flags & (syn | ack) == syn")
    try:
        text, _ = refused(job)
    finally:
        job.hosts[1].drop_nothing()
    assert "error: node h1: it cannot reach node h2 at 10.77.0.2 port " in text
    assert ": no connection within 5 s, as behind a firewall: let the nodes of a job reach each other" in text


def test_a_firewall_before_the_first_node_is_named_by_the_others(job: Job) -> None:
    job.hosts[0].drop("tcp dport 20000-29999")
    try:
        text, other = refused(job, "--wait", "8")
    finally:
        job.hosts[0].drop_nothing()
    assert "node number 1 did not come within 8 s; came: h1" in text
    assert "host h2: cannot join the first node (h1) at ports" in other
    assert "no connection within 3 s, as behind a firewall" in other


def test_packets_that_are_too_large_for_the_network_are_found(job: Job) -> None:
    job.hosts[1].mtu(9000)
    try:
        text, _ = refused(job)
        assert "warning: node h2: packets of eth0 have at most 9000 bytes (MTU), and those of h1 1500: run `ip" in text
        job.hosts[1].mtu(1500)
        for host in job.hosts:
            host.drop("ip length > 900")
        text, _ = refused(job)
        assert "error: node h2: it cannot reach node h1 at 10.77.0.1 port " in text
        assert ": small packets pass, and large ones (MTU) get no answer within 5 s" in text
        assert "Traceback" not in text
        for host in job.hosts:
            host.drop("ip length > 400")
        text, _ = refused(job, "--wait", "15")
        assert "refused: host h2: its small packets arrive, and larger ones do not within 10 s: compare" in text
    finally:
        job.hosts[1].mtu(1500)
        for host in job.hosts:
            host.drop_nothing()


def test_software_and_interfaces_that_differ_are_named(job: Job) -> None:
    other = job.folder / "other" / "numpy-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
    python = job.hosts[1]
    odd = f'[ "$(hostname)" != {python.name} ] || export PYTHONPATH={other.parent}:$PYTHONPATH NCCL_SOCKET_IFNAME=ib0;'
    started = job.start("false", env=REFUSED, before=odd)
    assert [one.status() for one in started] == [UNAVAILABLE] * 2, started[0].text
    assert "error: node h2: it has numpy 0.0.1, and h1 has " in started[0].text
    assert "error: node h2: NCCL_SOCKET_IFNAME is ib0, and its interfaces are lo, eth0: unset" in started[0].text


def test_debians_own_name_is_named(tmp_path: Path) -> None:
    with hosts(2, tmp_path, debian=True) as made:
        text, _ = refused(Job.on("PET_", made, tmp_path))
    for host in made:
        said = f"node {host.name}: it resolves its own name {host.name} to 127.0.1.1, at which no other host reaches"
        assert f"warning: {said}" in text
        assert f"make that line of its /etc/hosts `{host.address} {host.name}`" in text
