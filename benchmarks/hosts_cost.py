"""What hosts that are apart cost: the start of a job on them, and a warm test, on hosts in namespaces of this machine.

    python benchmarks/hosts_cost.py [--hosts 4] [--turns 3] [--tests 60]

Needs root, as tests/hosts does. The first table has seconds until a command runs on all hosts: with `ray start` on the
first host and then on the others side by side, and with `everywhere`, which does that and more. The second table has
milliseconds of a warm test of two ranks on two nodes: with a host for each node, and with both nodes on one host.
The arms take turns.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_gpuperf.features.everywhere import ray_node
from pytest_gpuperf.features.everywhere.secret import Secret
from tests.everywhere.jobs import Job
from tests.hosts.hosts import Host, hosts, lacking

SECRET = Secret("environment", "0123456789abcdef")
PORT = 6379
FREE = 2**30  # bytes
TESTS = """
import time
import pytest
import torch
import torch.distributed as dist

def program(ctx):
    x = torch.ones(4)
    dist.all_reduce(x)
    return x[0].item()

@pytest.mark.ranks(nodes=2, per_node=1)
@pytest.mark.parametrize("number", range({tests}))
def test_sums(ranks, number):
    assert ranks.run(program) == [2.0, 2.0]
"""
CONFTEST = """
import statistics
import time
import pytest

TAKEN = []

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    began = time.perf_counter()
    result = yield
    TAKEN.append(1e3 * (time.perf_counter() - began))
    return result

def pytest_unconfigure():
    print(f"median {statistics.median(TAKEN[10:]):.2f} ms")
"""
PYTEST = ("pytest", "-q", "--gpus", "0", "-p", "no:cacheprovider", "test_sums.py")


def ray_by_hand(made: Sequence[Host]) -> float:
    """Return the seconds that Ray's own start takes on hosts."""
    began = time.perf_counter()
    start_ray(made[0], "")
    started = [start_node(host, f"{made[0].address}:{PORT}", host.name) for host in made[1:]]
    for one in started:
        text, _ = one.communicate(timeout=300)
        assert one.returncode == 0, text
    return time.perf_counter() - began


def start_ray(host: Host, name: str) -> None:
    """Starts a head."""
    command = ray_node.make_head_command(host.address, PORT, name or host.name, FREE)
    host.run(*command, env=ray_environment(), timeout=300)


def start_node(host: Host, head: str, name: str) -> subprocess.Popen[str]:
    """Begins to start a node."""
    return host.start(*ray_node.make_node_command(head, host.address, name, FREE), env=ray_environment())


def ray_environment() -> dict[str, str]:
    """Return the environment of Ray's processes."""
    return ray_node.make_environment({}, SECRET, Path("/tmp/ray"))


def everywhere(count: int, folder: Path) -> float:
    """Return the seconds until a command runs on hosts."""
    with hosts(count, folder) as made:
        job = Job.on("PET_", made, folder)
        began = time.perf_counter()
        started = job.start("sh", "-c", "echo command runs", env={"RAY_AUTH_TOKEN": SECRET.token})
        started[0].until("command runs", 300)
        taken = time.perf_counter() - began
        for one in started:
            one.status()
    return taken


def warm(apart: bool, folder: Path, tests: int) -> float:
    """Return the milliseconds of a warm test of two ranks on two nodes.

    Args:
        apart: whether each node is a host.
        folder: for the tests.
        tests: how many.
    """
    with hosts(2 if apart else 1, folder) as made:
        job = Job.on("PET_", made, folder)
        (folder / "test_sums.py").write_text(TESTS.format(tests=tests))
        (folder / "conftest.py").write_text(CONFTEST)
        if apart:
            started = job.start(*PYTEST, env={"RAY_AUTH_TOKEN": SECRET.token})
            status, text = started[0].status(600), started[0].text
        else:
            start_ray(made[0], "a")
            start_node(made[0], f"{made[0].address}:{PORT}", "b").communicate(timeout=300)
            done = made[0].run(
                *PYTEST, "--cluster", f"{made[0].address}:{PORT}", env=ray_environment(), cwd=folder, timeout=600
            )
            status, text = done.returncode, done.stdout
        assert status == 0, text
    return float(text.partition("median ")[2].split()[0])


def main() -> None:
    """Measures both, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tests", type=int, default=60)
    options = parser.parse_args()
    if why := lacking():
        sys.exit(why)
    hand, command, apart, together = [], [], [], []
    for turn in range(options.turns):
        with tempfile.TemporaryDirectory(prefix="hosts", dir="/tmp") as name:
            folder = Path(name)
            with hosts(options.hosts, folder / "a") as made:
                hand.append(ray_by_hand(made))
            command.append(everywhere(options.hosts, made_folder(folder, "b")))
            apart.append(warm(True, made_folder(folder, "c"), options.tests))
            together.append(warm(False, made_folder(folder, "d"), options.tests))
        print(
            f"turn {turn + 1}: ray start {hand[-1]:.1f} s, everywhere {command[-1]:.1f} s; "
            f"warm test {apart[-1]:.2f} ms on two hosts, {together[-1]:.2f} ms on one",
            flush=True,
        )
    beyond = [one - other for one, other in zip(command, hand, strict=True)]
    more = [one - other for one, other in zip(apart, together, strict=True)]
    print(f"start on {options.hosts} hosts beyond Ray's own: {statistics.median(beyond):.1f} s (median of turns)")
    print(f"a warm test on two hosts beyond one on two nodes of a host: {statistics.median(more):.2f} ms")


def made_folder(folder: Path, name: str) -> Path:
    """Return a new folder in another one."""
    (folder / name).mkdir()
    return folder / name


if __name__ == "__main__":
    main()
