"""What a test on ranks costs beyond its own work, beside torch.multiprocessing.spawn in the same run.

    python benchmarks/rank_cost.py [--ranks 2] [--gpus 0] [--json FILE]

All do the same: a process group, one all_reduce of four numbers, its result checked. A cost is the
median of its repeats; a ratio is spawn's cost over it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TESTS = 20
EXAMPLES = 200
SPAWNS = 5

MODULE = """
import pytest, torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st

def program(ctx, value):
    x = torch.full((4,), float(value), device=ctx.device)
    dist.all_reduce(x)
    return float(x[0])

@pytest.mark.ranks({ranks})
@pytest.mark.parametrize("repeat", range({tests}))
def test_warm_pool(ranks, repeat):
    assert ranks.run(program, repeat) == [repeat * {ranks}] * {ranks}

@pytest.mark.ranks({ranks})
@settings(max_examples={examples}, deadline=None, database=None)
@given(value=st.integers(0, 10**6))
def test_examples(ranks, value):
    assert ranks.run(program, value) == [value * {ranks}] * {ranks}

@settings(max_examples={examples}, deadline=None, database=None)
@given(value=st.integers(0, 10**6))
def test_examples_without_ranks(value):
    assert value * {ranks} == sum([value] * {ranks})
"""


def spawned(rank: int, world_size: int, port: int, backend: str) -> None:
    """One rank of the spawn arm."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(
        backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size,
        device_id=device if backend == "nccl" else None,
    )  # fmt: skip
    x = torch.full((4,), 1.0, device=device)
    dist.all_reduce(x)
    assert float(x[0]) == world_size
    dist.destroy_process_group()


def spawn_seconds(ranks: int, backend: str) -> list[float]:
    """Seconds of each run of the spawn arm."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    seconds = []
    for _ in range(SPAWNS):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        start = time.perf_counter()
        mp.spawn(spawned, args=(ranks, port, backend), nprocs=ranks)
        seconds.append(time.perf_counter() - start)
    return seconds


def plugin_seconds(ranks: int, gpus: int) -> dict[str, list[float]]:
    """Seconds of each test of the plugin's arm, set-up and tear-down included, by test function."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_cost.py").write_text(MODULE.format(ranks=ranks, tests=TESTS, examples=EXAMPLES))
        (folder / "pytest.ini").write_text("[pytest]\njunit_duration_report = total\n")
        report = folder / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--gpus={gpus}", f"--junitxml={report}", "test_cost.py"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        seconds: dict[str, list[float]] = {}
        for case in ElementTree.parse(report).iter("testcase"):
            test = case.attrib["name"].partition("[")[0]
            seconds.setdefault(test, []).append(float(case.attrib["time"]))
    return seconds


def costs(ranks: int, gpus: int) -> dict[str, float]:
    """Median seconds by what is paid for."""
    plugin = plugin_seconds(ranks, gpus)
    first, *warm = plugin["test_warm_pool"]
    return {
        "spawn, per test": statistics.median(spawn_seconds(ranks, "nccl" if gpus else "gloo")),
        "first test (starts the forkserver and the ranks)": first,
        "test on a warm pool": statistics.median(warm),
        "one hypothesis example": plugin["test_examples"][0] / EXAMPLES,
        "one hypothesis example without ranks": plugin["test_examples_without_ranks"][0] / EXAMPLES,
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    measured = costs(options.ranks, options.gpus)
    spawn = measured["spawn, per test"]
    print(f"{options.ranks} ranks, {'nccl' if options.gpus else 'gloo'}, torch {torch.__version__}")
    for what, seconds in measured.items():
        print(f"{what:<50} {seconds * 1e3:>9.2f} ms  {spawn / seconds:>8.1f}x cheaper than spawn")
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
