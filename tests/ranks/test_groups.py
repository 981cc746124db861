"""What a rank keeps from test to test: nothing of the groups that were closed, nothing of the memory."""

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from pytest_gpuperf.ranks.pool import Pool
from tests.ranks.conftest import Call

MIB = 2**20


def keys(ctx: Context) -> int:
    """How many keys the ranks' store has, whatever group they belong to."""
    dist.barrier()
    return dist.distributed_c10d._get_default_store().num_keys()


def resident(ctx: Context) -> int:
    """Resident memory of the rank, bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_the_keys_of_closed_groups_leave_the_store(pool: Pool, call: Call) -> None:
    def subgroup(ctx: Context) -> None:
        dist.barrier(group=dist.new_group(list(range(ctx.world_size))))

    fresh = call(keys)[0]
    assert fresh
    call(subgroup)
    assert call(keys)[0] > fresh
    pool.settle()
    pool.open_group("second", 60)
    assert call(keys)[0] == fresh


def test_memory_that_a_test_freed_goes_back_to_the_kernel(pool: Pool, call: Call) -> None:
    def allocate(ctx: Context) -> None:
        blocks = [torch.ones(16 * 1024) for _ in range(64 * 16)]  # of 64 KiB, which malloc takes from its heap
        blocks[:] = blocks[-1:]  # the heap cannot shrink by itself: its last block is in use
        allocate.last = blocks  # type: ignore[attr-defined]

    call(allocate)
    before = call(resident)
    pool.settle()
    after = call(resident)
    assert all(was - now > 32 * MIB for was, now in zip(before, after, strict=True))
