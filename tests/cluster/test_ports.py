"""The ports that a run on a cluster listens on: Ray's, rank 0's store and gloo's; the plugin opens none of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.listening import listening
from tests.cluster.raylets import Raylets
from tests.whole_run import environment, run_pytest, write

pytestmark = pytest.mark.usefixtures("fresh_python")

SLOW = 300  # seconds; generous, since a machine may be busy
TESTS = """
import json, os
from pathlib import Path
import pytest, torch, torch.distributed as dist
from tests.cluster.listening import listening

TOLD = Path(__file__).parent

def tell(name, what):
    (TOLD / f"{name}.json").write_text(json.dumps(what))

def summed(ctx):
    x = torch.ones(2**23)  # 32 MiB, which go through Ray's object store
    dist.all_reduce(x)
    return x

@pytest.mark.ranks(4)
def test_messages(ranks):
    ranks.run(summed)
    tell("controller", listening(os.getpid()))

@pytest.mark.ranks(4, launcher_env=True)
def test_store(ranks):
    def program(ctx):
        before = listening(os.getpid())
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        after = listening(os.getpid())
        dist.destroy_process_group()
        return int(os.environ["MASTER_PORT"]), before, after, listening(os.getppid())
    tell("ranks", ranks.run(program))
"""
# What joins the cluster and does nothing else.
JOINS = """
import json, os, sys
import ray
from tests.cluster.listening import listening
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False)
print(json.dumps(listening(os.getpid())))
"""


def test_a_socket_is_found_while_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ("127.0.0.1", port) in listening(os.getpid())
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert client.getsockname() not in listening(os.getpid())
    assert ("127.0.0.1", port) not in listening(os.getpid())


def test_only_ray_the_store_and_gloo_listen(two_nodes: Raylets, tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": TESTS})
    run = run_pytest(tmp_path, "--cluster", two_nodes.address, timeout=SLOW)
    assert run.result.ret == 0, run.text
    joined = subprocess.run(
        [sys.executable, "-c", JOINS, two_nodes.address],
        env=environment(RAY_USAGE_STATS_ENABLED="0"),
        capture_output=True,
        text=True,
        check=True,
        timeout=SLOW,
    )
    of_ray = json.loads(joined.stdout.splitlines()[-1])
    controller = json.loads((tmp_path / "controller.json").read_text())
    assert [address for address, _ in controller] == [address for address, _ in of_ray], controller
    node, _, _ = two_nodes.address.rpartition(":")  # the same for both: they are this machine
    for rank, (port, before, after, forkserver) in enumerate(json.loads((tmp_path / "ranks.json").read_text())):
        assert before == ([[node, port]] if rank == 0 else [])
        assert {address for address, _ in after} == {node}  # where gloo listens
        assert len(after) > len(before)
        assert forkserver == []
