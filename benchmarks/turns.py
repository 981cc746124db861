"""What it saves if gloo's threads wait for their turns: small all_reduces of ranks that share two cores, both ways.

    python benchmarks/turns.py [--ranks 2 4] [--operations 2000] [--pairs 3]

Each pair runs all_reduces of 1000 floats as the kernel schedules by default, and as the plugin has its ranks scheduled
(``SCHED_BATCH``) if they measure nothing, one after the other. Prints the seconds of each and the median ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_gpuperf.ranks.scheduling import wait_for_turns

CORES = 2


def rank(number: int, ranks: int, folder: str, operations: int, turns: bool) -> None:
    """One rank of a group; rank 0 writes the seconds that the operations took into a file."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    if turns:
        wait_for_turns()
        if os.sched_getscheduler(0) != os.SCHED_BATCH:
            raise RuntimeError(
                "the system allows no SCHED_BATCH: both ways would be the same; run it outside of a sandbox"
            )
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", rank=number, world_size=ranks, store=store)
    numbers = torch.ones(1000)
    for _ in range(10):
        dist.all_reduce(numbers)
    dist.barrier()
    began = time.monotonic()
    for _ in range(operations):
        dist.all_reduce(numbers)
    if number == 0:
        Path(folder, "seconds").write_text(str(time.monotonic() - began))
    dist.barrier()
    dist.destroy_process_group()


def seconds(ranks: int, operations: int, turns: bool) -> float:
    """Seconds of so many all_reduces of so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, args=(ranks, folder, operations, turns), nprocs=ranks)
        return float(Path(folder, "seconds").read_text())


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of ranks (default 2 and 4)")
    parser.add_argument("--operations", type=int, default=2000, help="all_reduces each way (default 2000)")
    parser.add_argument("--pairs", type=int, default=3, help="of both ways (default 3)")
    read = parser.parse_args(arguments)
    if (cores := len(os.sched_getaffinity(0))) < CORES:
        parser.error(f"needs {CORES} cores and has {cores}: allow it more, as by taskset")
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        parser.error("both ways would be the same, as a scheduling policy was chosen: run it without chrt")
    for ranks in read.ranks:
        pairs = [[seconds(ranks, read.operations, turns) for turns in (False, True)] for _ in range(read.pairs)]
        told = ", ".join(f"{one:.2f} and {other:.2f} s" for one, other in pairs)
        ratio = statistics.median(one / other for one, other in pairs)
        print(f"{ranks} ranks on {CORES} cores: {told}: {ratio:.1f} times as fast in turns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
