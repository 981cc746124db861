"""all_reduce as the plugin measures it, beside a hand-written loop of CUDA events, on the same GPUs in one run.

    python benchmarks/against_event_loop.py --gpus 8 [--mib 1024] [--json FILE]

Both time the same bf16 all_reduce and take the slowest rank's median; they take turns, and the medians of
their turns are compared.
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
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.pytest_command import pytest_command

TURNS = 3
WARMUP = 20
SAMPLES = 20
CALLS = 5  # back to back between two events

MODULE = """
import pytest, torch
import torch.distributed as dist

def all_reduce(ctx, *, numel):
    x = torch.ones(numel, dtype=torch.bfloat16, device=ctx.device)
    return lambda: dist.all_reduce(x, dist.ReduceOp.MAX)

@pytest.mark.perf
@pytest.mark.ranks({ranks})
def test_all_reduce(perf, record_property):
    record_property("seconds", perf.measure(all_reduce, numel={numel}).median)
    perf.check(time=perf.measure(all_reduce, numel={numel}).time)
"""


def loop(rank: int, world_size: int, port: int, numel: int, file: str) -> None:
    """One rank of the hand-written arm; rank 0 writes the slowest rank's median in seconds."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size, device_id=device
    )
    x = torch.ones(numel, dtype=torch.bfloat16, device=device)
    for _ in range(WARMUP):
        dist.all_reduce(x, dist.ReduceOp.MAX)
    seconds = []
    for _ in range(SAMPLES):
        dist.barrier()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            dist.all_reduce(x, dist.ReduceOp.MAX)
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / CALLS / 1e3)
    samples = torch.tensor(seconds, device=device)
    dist.all_reduce(samples, dist.ReduceOp.MAX)
    if rank == 0:
        Path(file).write_text(str(float(samples.median())))
    dist.destroy_process_group()


def by_hand(ranks: int, numel: int, folder: Path) -> float:
    """Seconds by the hand-written loop."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    file = folder / "seconds"
    mp.spawn(loop, args=(ranks, port, numel, str(file)), nprocs=ranks)
    return float(file.read_text())


def by_plugin(ranks: int, numel: int, folder: Path) -> float:
    """Seconds by the plugin."""
    (folder / "test_loop.py").write_text(MODULE.format(ranks=ranks, numel=numel))
    (folder / "pytest.ini").write_text("[pytest]\n")
    report = folder / "report.xml"
    command = pytest_command(f"--gpus={ranks}", f"--junitxml={report}", "test_loop.py")
    # It fails for want of a baseline; what it measured is in the report all the same.
    subprocess.run(command, cwd=folder, check=False, stdout=subprocess.DEVNULL)
    for found in ElementTree.parse(report).iter("property"):
        if found.attrib["name"] == "seconds":
            return float(found.attrib["value"])
    raise RuntimeError(f"the plugin measured nothing: {report.read_text()}")


def main() -> None:
    """Prints both times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    numel = options.mib * 2**20 // 2
    with tempfile.TemporaryDirectory() as name:
        turns = [
            (by_hand(options.gpus, numel, Path(name)), by_plugin(options.gpus, numel, Path(name))) for _ in range(TURNS)
        ]
    hand, plugin = (statistics.median(side) for side in zip(*turns, strict=True))
    print(
        f"all_reduce, {options.mib} MiB bf16, {options.gpus} x {torch.cuda.get_device_name()}, medians of {TURNS} turns"
    )
    print(f"hand-written event loop {hand * 1e3:.3f} ms, plugin {plugin * 1e3:.3f} ms: {plugin / hand - 1:+.2%}")
    if options.json is not None:
        options.json.write_text(json.dumps({"hand": hand, "plugin": plugin, "turns": turns}, indent=1) + "\n")


if __name__ == "__main__":
    main()
