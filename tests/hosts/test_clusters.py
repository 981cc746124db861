"""Ray clusters of hosts that are apart: nodes that cannot be used, and hosts that are lost while a test runs."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpuperf.features.everywhere import ray_node
from pytest_gpuperf.features.everywhere.secret import Secret
from tests.everywhere.jobs import Job, lacking
from tests.hosts import shares, slurm
from tests.hosts.hosts import Host, hosts
from tests.hosts.hosts import lacking as lacking_hosts
from tests.whole_run import ROOT

pytestmark = [
    pytest.mark.skipif(os.environ.get("GPUPERF_TEST_LAUNCHERS") != "1", reason="takes minutes: run make launchers"),
    pytest.mark.skipif(bool(lacking_hosts()), reason=lacking_hosts() or "it can"),
]
ACCEPTS = """
for case in {cases}; do
    touch begin-$case
    while [ ! -e set-$case ]; do sleep 0.1; done
    python -m pytest_gpuperf accept --cluster auto --gpus 0 > verdict-$case 2>&1
    echo "exit status $?" >> verdict-$case
done
"""
CASES: dict[str, Callable[[Sequence[Host]], None]] = {
    "loss": lambda made: lossy(made, 1, 3),
    "healthy": lambda made: None,
    "cores": lambda made: made[2].load(3),
    "rate": lambda made: made[2].rate("100mbit"),
}
PACKETS = ("ip", "link", "set", "eth0", "gso_max_segs")
RAY = ray_node.make_environment({}, Secret("environment", "0123456789abcdef"), Path("/tmp/ray"))
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
        command = ray_node.make_head_command(address, PORT, host.name, 2**30)
        if host is not made[0]:
            command = ray_node.make_node_command(f"{addresses[0]}:{PORT}", address, host.name, 2**30)
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


def lossy(made: Sequence[Host], *ends: int) -> None:
    """Loses 2 % of the packets between two of the hosts. All send packet by packet, or 45 of them would be one."""
    for host in made:
        host.run(*PACKETS, "1")
    for receiver, sender in (ends, ends[::-1]):
        made[receiver].drop(f"ip saddr {made[sender].address} numgen random mod 100 < 2")


@dataclass
class Accepted:
    """What ``accept`` printed in a Slurm job on four hosts, by case, and which nodes its commands drained."""

    verdicts: dict[str, str]
    drained: str


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Accepted:
    if why := lacking("srun"):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("accepts")
    fair = not shares.lacking()
    cases = {case: faulty for case, faulty in CASES.items() if fair or case != "cores"}
    with hosts(4, folder, fair=fair) as made:
        job = Job.on("srun", made, folder)
        (started,) = job.start("sh", "-c", ACCEPTS.format(cases=" ".join(cases)), options=("--lost-after", "60"))
        for case, faulty in cases.items():
            until = time.monotonic() + 600
            while not (folder / f"begin-{case}").exists():  # a file that another host's process makes
                assert started.process.poll() is None, started.text
                assert time.monotonic() < until, f"{case} did not begin: {started.text}"
                time.sleep(0.1)
            for host in made:
                host.rate("1gbit")
                host.drop_nothing()
                host.run(*PACKETS, "65535")
                host.unload()
            faulty(made)
            (folder / f"set-{case}").touch()
        assert started.status(900) == 0, started.text
        verdicts = {case: (folder / f"verdict-{case}").read_text() for case in cases}
        drains = [line for line in verdicts["rate"].splitlines() if line.startswith("scontrol update")]
        made[0].run("sh", "-ec", "\n".join(drains))
        drained = made[0].run("sinfo", "-h", "-N", "-t", "drain", "-o", "%N: %E").stdout
    return Accepted(verdicts, drained)


def test_hosts_without_a_fault_are_fit(accepted: Accepted) -> None:
    assert "fit: no host, GPU or link is slow\nexit status 0" in accepted.verdicts["healthy"]


@pytest.mark.parametrize(
    ("case", "verdict", "part"),
    [
        ("rate", "unfit: h3", r"host h3: [89]\d\.\d % slower than the other hosts in pairs"),
        pytest.param(
            "cores",
            "unfit: h3",
            r"host h3: \d\d\.\d % slower than the other hosts in (matrix products|copies in memory)",
            marks=pytest.mark.skipif(bool(shares.lacking()), reason=shares.lacking() or "it can"),
        ),
        ("loss", "unfit", r"link h2 - h4: \d\.\d % of its packets are sent again \(usually 0\.\d %\)"),
    ],
)
def test_what_is_slow_is_named_and_nothing_else(accepted: Accepted, case: str, verdict: str, part: str) -> None:
    text = accepted.verdicts[case]
    lines = text.splitlines()
    assert verdict in lines, text
    assert any(re.fullmatch(part, line) for line in lines), text
    assert {line.partition(":")[0] for line in lines if line.startswith(("host ", "GPU ", "link "))} == {
        part.partition(":")[0]
    }, text
    assert lines[-1] == "exit status 1"


def test_slurm_drains_the_slow_host_for_the_reason_that_is_printed(accepted: Accepted) -> None:
    assert re.fullmatch(r"h3: gpuperf: host h3: .*\n", accepted.drained), accepted.verdicts["rate"]


def test_slurm_drains_a_node_whose_health_check_fails(tmp_path: Path) -> None:
    """The documented Prolog on a host without the GPU that it should have."""
    if why := slurm.lacking():
        pytest.skip(why)
    prolog = tmp_path / "prolog"
    script = (ROOT / "docs/manifests/slurm-health-check.sh").read_text()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin"
    prolog.write_text(script.replace("output=", f"export GPUS=1 PATH={path} PYTHONPATH={ROOT}\noutput=", 1))
    prolog.chmod(0o755)
    with hosts(1, tmp_path) as (host,):
        slurm.start([host], tmp_path, f"Prolog={prolog}\nPrologFlags=Alloc")
        with host.start("srun", "true"):
            until = time.monotonic() + 120
            while not (said := host.run("sinfo", "-h", "-N", "-t", "drain", "-o", "%N: %E").stdout):
                assert time.monotonic() < until, "the node was not drained"
                time.sleep(0.5)
            host.signal("srun", signal.SIGKILL)
    assert said.startswith("h1: gpuperf: error: --gpus 1: no GPU is visible"), said
