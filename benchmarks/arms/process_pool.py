"""A multiprocessing pool as DeepSpeed's tests use one (its tests/unit/common.py): the mechanism, not its code.

Rebuilt from a description: a forkserver that preloads nothing, a ``Pool`` of as many workers as ranks,
``starmap`` over the ranks, ranks that meet in a FileStore. Without ``reuse_dist_env`` each test has a pool of
its own; with it, pool and process group are kept. Left out is what only makes it slower: the import of
deepspeed, and the half second that it sleeps after each launch.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from multiprocessing.pool import Pool

import torch.distributed as dist

from benchmarks.arms.workload import World, all_reduce_checked, arguments, open_group, report, seconds_of


def test_on_rank(world: World, rank: int, file: str) -> None:
    """One rank's part of a test. A kept worker has its group and thereby its rank: starmap pins none."""
    if not dist.is_initialized():
        open_group(world, rank, file)
    all_reduce_checked(world, dist.get_rank())


def destroy_on_rank(rank: int) -> None:
    """The end of a rank's group."""
    dist.barrier()
    dist.destroy_process_group()


def run_on(pool: Pool, world: World, file: str) -> None:
    """A test on the pool's workers."""
    pool.starmap(test_on_rank, [(world, rank, file) for rank in range(world.size)], chunksize=1)


def close(pool: Pool, world: World) -> None:
    """Ends the workers."""
    pool.starmap(destroy_on_rank, [(rank,) for rank in range(world.size)], chunksize=1)
    pool.close()
    pool.join()


def one_test(world: World) -> None:
    """A test with a pool of its own."""
    with tempfile.TemporaryDirectory() as folder:
        pool = multiprocessing.get_context("forkserver").Pool(world.size)
        run_on(pool, world, os.path.join(folder, "store"))
        close(pool, world)


def reusing(world: World, tests: int) -> list[float]:
    """Seconds of each test on a pool that is there already."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "store")
        pool = multiprocessing.get_context("forkserver").Pool(world.size)
        run_on(pool, world, file)
        seconds = [seconds_of(lambda: run_on(pool, world, file)) for _ in range(tests)]
        close(pool, world)
    return seconds


def main() -> None:
    """One test of each kind unmeasured, then the others."""
    asked = arguments()
    one_test(asked.world)
    report(
        {
            "fresh": [seconds_of(lambda: one_test(asked.world)) for _ in range(asked.tests)],
            "reused": reusing(asked.world, 5 * asked.tests),
        }
    )


if __name__ == "__main__":
    main()
