"""What a test costs on raylets of this machine: ``rank_cost.py --cluster`` prints it.

The plugin's own arm of ``rank_cost``, without a cluster, on a cluster of one node, and with the same ranks on two
nodes. What one node costs more is Ray's part; what two cost more is the second node's.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.arms.plugin import rows_of, run
from benchmarks.arms.workload import Arguments, World
from benchmarks.pytest_command import pytest_command
from tests.cluster.raylets import Raylets, raylets
from tests.whole_run import environment

ROWS: Mapping[str, str] = {
    "warm": "warm pool, a group per test",
    "example": "one hypothesis example, group kept",
    "fresh": "fresh processes per test",
    "restart": "set-up after a rank was killed",
}
NODES = (0, 1, 2)  # 0: without a cluster
SENT_TO = (4, 8)  # ranks; if each of them were sent its own, the second would cost twice the first on 4 nodes
MOST_NODES = 4  # that arguments are sent to
MUCH = 64 * 2**20  # bytes of arguments

SENDS = """
import time
import pytest, torch

@pytest.mark.ranks({marked})
def test_sends(ranks):
    much = torch.zeros({much}, dtype=torch.uint8)
    program = lambda ctx, x: x.numel()
    ranks.run(program, much[:1])
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        assert ranks.run(program, much) == [{much}] * {ranks}
        seconds.append(time.perf_counter() - began)
    print("seconds", min(seconds))
"""


def compare(ranks: int, tests: int, turns: int) -> Iterator[str]:
    """The costs as lines of text.

    Args:
        ranks: world size; a multiple of 2.
        tests: of each kind in a turn.
        turns: how often each arm runs.
    """
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(turns):
        for nodes in NODES:
            for row, found in _turn(Arguments(World(ranks, False), tests), nodes).items():
                seconds.setdefault((row, nodes), []).extend(found)
    yield f"{ranks} ranks, gloo, {turns} turns"
    yield f"{'ms per test, median':<40}{'no cluster':>12}{'1 node':>12}{'2 nodes':>12}"
    for row, label in ROWS.items():
        medians = "".join(f"{statistics.median(seconds[row, nodes]) * 1e3:>12.2f}" for nodes in NODES)
        yield f"  {label:<38}{medians}"
    yield f"{'ms, least of 5':<40}{'no cluster':>12}{'1 node':>12}{'2 nodes':>12}{'4 nodes':>12}"
    sends = [_sends(nodes) for nodes in (*NODES, MOST_NODES)]
    for place, count in enumerate(SENT_TO):
        row = "".join(f"{found[place] * 1e3:>12.0f}" for found in sends)
        yield f"  {f'64 MiB of arguments to {count} ranks':<38}{row}"


def _turn(asked: Arguments, nodes: int) -> dict[str, list[float]]:
    if not nodes:
        return rows_of(run(asked))[0]
    with raylets(*_names(nodes), cpus=asked.world.size // nodes) as cluster:
        return rows_of(run(asked, f"--cluster={cluster.address}"))[0]


def _sends(nodes: int) -> list[float]:
    """Seconds by how many ranks the arguments go to."""
    if not nodes:
        return [_sent(None, str(count), count) for count in SENT_TO]
    with raylets(*_names(nodes), cpus=max(SENT_TO) // nodes) as cluster:
        return [_sent(cluster, f"{count}, per_node={count // nodes}", count) for count in SENT_TO]


def _sent(cluster: Raylets | None, marked: str, count: int) -> float:
    import subprocess

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_sends.py").write_text(SENDS.format(much=MUCH, marked=marked, ranks=count))
        options = ["-s"] if cluster is None else ["-s", f"--cluster={cluster.address}"]
        command = pytest_command("-p", "no:cacheprovider", *options)
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=True)
    return float(done.stdout.rpartition("seconds ")[2].split()[0])


def _names(nodes: int) -> list[str]:
    return [f"node-{number}" for number in range(nodes)]
