"""One pod with all GPUs next to pods of one GPU each, as launchers start them: how much slower are the pods of one?

    python benchmarks/pods.py --gpus 2 [--launchers srun PET_] [--pods one each] [--json FILE]

A pod is a host in namespaces of this machine (tests/hosts): it has its own name, address, boot id, /dev/shm and GPUs.
A real Slurm, or the variables of Kubeflow's operators, start one process in each pod; they run the same perf tests. The
table has the figures of each start side by side, and what NCCL's log says: how many nodes it sees, and which transports
it takes if nothing forces one. Tests of a transport that NCCL does not have there are skipped. Needs root and what
``make launchers`` needs. ``--gpus 0`` tries the same on CPUs, with one sample.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.everywhere.jobs import Job, lacking
from tests.hosts.hosts import hosts

ROOT = Path(__file__).resolve().parents[1]
LAUNCHERS = {"srun": "Slurm", "PET_": "PET_"}
PODS = {"one": "one pod", "each": "a pod each"}
TESTS = tuple(f"suites/{subject}/test_performance.py" for subject in ("transports", "llm_step", "multi_node"))
CHOSEN = "test_p2p or test_net or test_step or test_over_p2p or test_over_net or test_bandwidth or test_own_way"
INHERITED = ("NCCL_", "TORCH_SYMM_MEM_", "NVSHMEM_")
TIMEOUT = 600.0  # seconds of one start
OWN_WAY = """
import json
import os
import pytest
from suites.shared.ways import connected

@pytest.mark.ranks({ranks}, nccl_log=True)
def test_own_way(ranks):
    logs = ranks.run(connected)
    transports = sorted({{transport for log in logs for transport in log.transports}})
    nodes = sorted({{one.nodes for log in logs for one in log.communicators if one.ranks == len(logs)}})
    with open(os.environ["OWN_WAY"], "w") as file:
        json.dump([", ".join(transports), ", ".join(map(str, nodes))], file)
"""


@dataclass(frozen=True, slots=True)
class Start:
    """What one start of the tests has found."""

    title: str
    seconds: float
    figures: Mapping[str, str]
    """Values with their units, by test and metric, and what NCCL takes."""


def rows(starts: Sequence[Start]) -> list[list[str]]:
    """Return the lines of a table: a figure each, a column for each start."""
    names = list(dict.fromkeys(name for start in starts for name in start.figures))
    body = [[name, *(start.figures.get(name, "") for start in starts)] for name in names]
    times = ["seconds in all", *(f"{start.seconds:.0f}" for start in starts)]
    return [["", *(start.title for start in starts)], *body, times]


def figures(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the values in a file of results, by test and metric."""
    return {
        f"{_short(one['test'])} {one['metric_name']}": f"{one['metric']['value']:.4g} {one['metric']['unit']}"
        for one in results["verdicts"]
    }


def run(launcher: str, pods: str, gpus: int) -> Start:
    """Starts the tests once.

    Args:
        launcher: a key of LAUNCHERS.
        pods: a key of PODS.
        gpus: of all pods together; 0 for two ranks on CPUs.

    Raises:
        RuntimeError: a test failed, or none ran.
    """
    ranks = gpus or 2
    count = 1 if pods == "one" else ranks
    dealt = [list(range(gpus))] if pods == "one" else [[gpu] for gpu in range(gpus)]
    cpus = max(2, (os.cpu_count() or 1) // count)
    title = f"{PODS[pods]}, {LAUNCHERS[launcher]}"
    with tempfile.TemporaryDirectory(prefix="pods", dir="/tmp") as own:
        folder = Path(own)
        with hosts(count, folder, gpus=dealt) as made:
            job = Job.on(launcher, made, folder, cpus=cpus, gpus=dealt if gpus else ())
            (folder / "test_own_way.py").write_text(OWN_WAY.format(ranks=ranks))
            env = {key: value for key, value in os.environ.items() if key.startswith(INHERITED)}
            options = ["--gpus", "auto", "-k", CHOSEN]
            if not gpus:
                options = ["--gpus", "0", "--smoke", "-k", f"({CHOSEN}) and not 4ranks and not 8ranks"]
            began = time.monotonic()
            started = job.start(
                *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "--tb=short", *options),
                *("--baselines", str(folder / "none"), "--gpuperf-json", str(folder / "results.json")),
                *(str(ROOT / test) for test in TESTS),
                str(folder / "test_own_way.py"),
                env={**env, "OWN_WAY": str(folder / "own_way.json")},
            )
            statuses = [one.status(TIMEOUT) for one in started]
            seconds = time.monotonic() - began
            print(f"--- {title}\n{started[0].text}", flush=True)
            if any(statuses):
                raise RuntimeError(f"{title}: tests failed, or did not run: statuses {statuses}")
        found = figures(json.loads((folder / "results.json").read_text()))
        transports, nodes = json.loads((folder / "own_way.json").read_text())
    return Start(title, seconds, {"NCCL takes": transports, "nodes that NCCL sees": nodes, **found})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all starts, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, required=True, help="all of them together; 0 tries it on CPUs")
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS))
    parser.add_argument("--pods", nargs="+", choices=PODS, default=list(PODS))
    parser.add_argument("--json", type=Path, help="write the table to this file, too")
    given = parser.parse_args(arguments)
    for launcher in given.launchers:
        if why := lacking(launcher):
            parser.error(why)
    table = rows([run(launcher, pods, given.gpus) for launcher in given.launchers for pods in given.pods])
    for row in table:
        print("| " + " | ".join(row) + " |")
    if given.json is not None:
        given.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0


def _short(test: str) -> str:
    """Return a test's name without its folder."""
    file, _, name = test.rpartition("::")
    parts = Path(file).parts
    return f"{parts[-2]} {name}" if len(parts) > 1 else name


if __name__ == "__main__":
    sys.exit(main())
