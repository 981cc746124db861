"""What a rank keeps from test to test: nothing of the groups that were closed, nothing of the memory."""

import gc
import sys
import time
import types
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_gpuperf import Context
from pytest_gpuperf.ranks.closing import Closing
from pytest_gpuperf.ranks.groups import Groups
from pytest_gpuperf.ranks.messages import Start
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


def test_imports_are_left_out_of_later_collections_and_garbage_is_not(pool: Pool, call: Call) -> None:
    def importing(ctx: Context) -> int:
        class Cycle:
            itself: object

        cycle = Cycle()
        cycle.itself = cycle  # a collection alone frees it
        dist.cycle_of_a_test = weakref.ref(cycle)  # type: ignore[attr-defined]
        sys.modules["a module that a test imports"] = types.ModuleType("a module that a test imports")
        return gc.get_freeze_count()

    def afterwards(ctx: Context) -> tuple[int, bool]:
        return gc.get_freeze_count(), dist.cycle_of_a_test() is None  # type: ignore[attr-defined]

    before = call(importing)
    pool.settle()
    pool.open_group("second", 60)
    spared = call(afterwards)
    pool.settle()
    pool.open_group("third", 60)
    assert all(gone and count > then for (count, gone), then in zip(spared, before, strict=True))
    # Nothing more was imported: nothing more is left out.
    assert all(count <= then for (count, _), (then, _) in zip(call(afterwards), spared, strict=True))


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


def test_what_a_failed_example_left_in_a_cycle_is_freed_before_the_next_one(pool: Pool, call: Call) -> None:
    class Node:
        pass

    def fail(ctx: Context) -> None:
        lasting: Any = Groups
        node: Any = Node()
        node.itself = node
        lasting.last = weakref.ref(node)
        gc.disable()  # what a cycle holds is to be freed whether or not the collector happens to come by
        raise ValueError(ctx.rank)

    def freed(ctx: Context) -> bool:
        gc.enable()
        lasting: Any = Groups
        return lasting.last() is None

    pool.settle()
    pool.open_group("second", 60)
    with pytest.raises(ValueError, match=r"(?m)^[01]$"):
        call(fail)
    pool.open_group("second", 60)
    assert call(freed) == [True, True]


def test_garbage_is_looked_through_once_between_two_tests(pool: Pool, call: Call) -> None:
    def listen(ctx: Context) -> None:
        lasting: Any = Groups
        lasting.collections = 0

        def heard(phase: str, info: dict[str, int]) -> None:
            lasting.collections += phase == "start" and info["generation"] == 2

        gc.set_threshold(0)  # none but those that are asked for
        gc.callbacks.append(heard)

    def collections(ctx: Context) -> int:
        lasting: Any = Groups
        told: int = lasting.collections
        return told

    call(listen)
    pool.settle()
    pool.open_group("second", 60)
    assert call(collections) == [1, 1]


def mesh_of_a_product(ctx: Context, groups_before: int) -> tuple[str, str]:
    """Names of one group: of the mesh, and of a DTensor computed on it. Groups made before it take names."""
    for _ in range(groups_before):
        dist.new_group(list(range(ctx.world_size)))
    mesh = init_device_mesh("cpu", (1, ctx.world_size), mesh_dim_names=("outer", "inner"))
    left = distribute_tensor(torch.ones(4, 4), mesh, [Replicate(), Shard(1)])
    right = distribute_tensor(torch.ones(4, 4), mesh, [Replicate(), Shard(0)])
    product = left @ right
    assert isinstance(product, DTensor)
    assert float(product.full_tensor().sum()) == 64.0
    return mesh.get_group("outer").group_name, product.device_mesh.get_group("outer").group_name


def test_a_mesh_of_closed_groups_is_not_handed_to_another_test(pool: Pool, call: Call) -> None:
    names = set()
    for test, groups_before in [("second", 5), ("third", 0)]:
        pool.settle()
        pool.open_group(test, 60)
        for of_mesh, of_product in call(mesh_of_a_product, groups_before):
            assert of_product == of_mesh
            names.add(of_mesh)
    assert len(names) == 4  # no name was used twice: what is kept of the first mesh would not do for the second


def test_all_groups_of_a_test_end_beside_the_next_one(pool: Pool, call: Call) -> None:
    def listen(ctx: Context) -> None:
        dist.new_group(list(range(ctx.world_size)))
        listening: Any = Closing
        let_go = listening.let_go

        def told(closing: Closing, groups: list[dist.ProcessGroup]) -> None:
            listening.sizes = [] if dist.is_initialized() else [group.size() for group in groups]  # torch has let go
            listening.let_go = let_go
            let_go(closing, groups)

        listening.let_go = told

    def ended(ctx: Context) -> list[int]:
        listening: Any = Closing
        sizes: list[int] = listening.sizes
        return sizes

    call(listen)
    pool.settle()
    pool.open_group("second", 60)
    assert call(ended) == [[2, 2], [2, 2]]


def test_a_backend_that_does_not_count_is_no_reason_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = mock.Mock(_get_sequence_number_for_group=mock.Mock(side_effect=RuntimeError("not implemented")))
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_map={odd: ()}))
    assert Groups(Start(0, 2, "gloo", 1), torch.device("cpu"), None).read_sequence_numbers() is None


def name_of(file: Path) -> str:
    """A thread's name; nothing of one that has just ended."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def loops(pool: Pool, most: int) -> list[int]:
    """How many threads of gloo each rank has that wake every 10 ms, once these are few enough, or after 3 s."""
    until = time.monotonic() + 3
    while True:
        threads = [[name_of(file) for file in Path(f"/proc/{pid}/task").glob("*/comm")] for pid in pool.pids]
        found = [of_rank.count("gloo_tcp_loop\n") for of_rank in threads]
        if max(found) <= most or time.monotonic() > until:
            return found
        time.sleep(0.01)  # the kernel has no event for the end of another process's thread


def redistribute(ctx: Context) -> None:
    mesh = init_device_mesh("cpu", (1, ctx.world_size), mesh_dim_names=("outer", "inner"))
    tensor = distribute_tensor(torch.ones(4, 4), mesh, [Replicate(), Shard(0)])
    product = tensor @ tensor
    assert isinstance(product, DTensor)
    product.full_tensor()


def test_ranks_that_rest_have_no_groups_that_wake_them(pool: Pool, call: Call) -> None:
    call(keys)
    assert loops(pool, most=1) == [1, 1]
    assert not pool.settle()
    assert loops(pool, most=0) == [0, 0]


def test_a_closed_mesh_that_dtensor_knew_has_no_groups(pool: Pool, call: Call) -> None:
    for test in ("second", "third"):
        pool.open_group(test, 60)
        call(redistribute)
        assert not pool.settle()
        assert max(loops(pool, most=1)) <= 1  # torch itself keeps one of them, the same for all tests
