"""torch.multiprocessing.spawn for each test."""

from __future__ import annotations

import os
import tempfile

import torch.multiprocessing as mp

from benchmarks.arms.workload import World, arguments, report, seconds_of, whole_test


def rank_main(rank: int, world: World, file: str) -> None:
    """One rank."""
    whole_test(world, rank, file)


def one_test(world: World) -> None:
    """Spawns the ranks and joins them."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, args=(world, os.path.join(folder, "store")), nprocs=world.size)


def main() -> None:
    """One test unmeasured, then the others."""
    asked = arguments()
    one_test(asked.world)
    report({"test": [seconds_of(lambda: one_test(asked.world)) for _ in range(asked.tests)]})


if __name__ == "__main__":
    main()
