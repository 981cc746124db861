"""Ranks that wait for each other, or for one that is gone, in collectives of any kind and group."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import CollectiveMismatch, Context
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.ranks.conftest import notes

GRACE = 1.0
SLOW = 3.0  # seconds: much more than the grace
SPARE = 30.0  # a program that first imports FSDP takes seconds on a busy machine; half of the timeout

Run = Callable[..., list[Any]]


@pytest.fixture
def run(torch_client: ForkserverClient) -> Iterator[Run]:
    pool = Pool(LocalNode(torch_client), PoolSpec(3), {"PATH": "/bin"}, grace=GRACE)
    pool.open_group("first", 60)

    def run(function: Callable[..., Any], timeout: float = 60.0) -> list[Any]:
        task = payload.dumps((function, (), {}), [sys.modules[__name__]])
        return [payload.loads(p) for p in pool.run(task, program=function.__name__, seed=0, timeout=timeout)]

    yield run
    pool.close()


def one() -> torch.Tensor:
    return torch.ones(4)


def failure_of(run: Run, program: Callable[[Context], Any]) -> str:
    """How a program fails that no time would cure: soon after the grace."""
    start = time.monotonic()
    with pytest.raises(CollectiveMismatch) as caught:
        run(program)
    assert time.monotonic() - start < GRACE + SPARE
    return str(caught.value)


def test_groups_that_are_entered_in_different_orders(run: Run) -> None:
    def program(ctx: Context) -> None:
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
        if ctx.rank == 0:
            dist.all_reduce(one(), group=first)
            dist.all_reduce(one(), group=second)
        else:
            dist.all_reduce(one(), group=second)
        if ctx.rank == 1:
            dist.all_reduce(one(), group=first)

    said = failure_of(run, program)
    file = __file__
    assert said.startswith(
        "program on 3 ranks (gloo) can never end: group 1 (ranks 0, 1) and group 2 (ranks 0, 1, 2) were entered in "
        f"different orders: rank 0 waits for rank 1 in all_reduce Float[4] on group 1 (ranks 0, 1), at {file}:"
    )
    assert "; rank 1 waits for rank 0 in all_reduce Float[4] on group 2 (ranks 0, 1, 2), at " in said
    assert said.endswith("Ranks that share several groups must enter them in one order")


def test_a_circle_of_three_groups(run: Run) -> None:
    def program(ctx: Context) -> None:
        pairs = [dist.new_group(pair) for pair in ([0, 1], [1, 2], [0, 2])]
        order = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[ctx.rank]
        for index in order:
            dist.barrier(group=pairs[index])

    assert "ranks 0, 1, 2 wait for each other: rank 0 waits for rank 1 in barrier" in failure_of(run, program)


def test_one_that_waits_for_one_that_waits_for_one_that_has_returned(run: Run) -> None:
    def program(ctx: Context) -> None:
        pair = dist.new_group([0, 1])
        other = dist.new_group([1, 2])
        if ctx.rank == 1:
            dist.broadcast(one(), src=2, group=other)
        if ctx.rank < 2:
            dist.broadcast(one(), src=1, group=pair)

    assert "rank 1 waits in broadcast Float[4]; rank 2 returned without it" in failure_of(run, program)


def test_the_root_of_a_large_broadcast_is_not_left_waiting(run: Run) -> None:
    def program(ctx: Context) -> None:
        group = dist.new_group([0, 1, 2])
        if ctx.rank:
            dist.broadcast(torch.ones(4_000_000), src=1, group=group)

    assert "in broadcast Float[4000000]; rank 0 returned without it" in failure_of(run, program)


def large_gather(ctx: Context) -> None:
    big = torch.ones(4_000_000)
    if ctx.rank != 2:
        dist.gather(big, [torch.ones_like(big) for _ in range(3)] if ctx.rank == 0 else None, dst=0)


def large_all_to_all(ctx: Context) -> None:
    if ctx.rank != 2:
        dist.all_to_all_single(torch.ones(3_000_000), torch.ones(3_000_000))


def large_reduce(ctx: Context) -> None:
    if ctx.rank != 2:
        dist.reduce(torch.ones(4_000_000), dst=1)


def large_scatter(ctx: Context) -> None:
    big = torch.ones(4_000_000)
    if ctx.rank != 2:
        dist.scatter(big, [big, big, big] if ctx.rank == 0 else None, src=0)


@pytest.mark.parametrize("program", [large_gather, large_all_to_all, large_reduce, large_scatter])
def test_large_messages_of_any_kind(run: Run, program: Callable[[Context], None]) -> None:
    assert "rank 2 returned without it" in failure_of(run, program)


def batches(ctx: Context, own: int) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    for _ in range(own):
        model(torch.ones(2, 64)).sum().backward()


def assert_parted(said: str) -> None:
    # Either side may be the first to have waited for long enough.
    assert (
        "in all_reduce Float[4160]; rank 1 issued barrier in its place" in said
        or "rank 1 waits in barrier; ranks 0, 2 issued all_reduce Float[4160] in its place" in said
    )


def test_ddp_with_an_uneven_number_of_batches(run: Run) -> None:
    def program(ctx: Context) -> None:
        batches(ctx, 2 if ctx.rank == 1 else 3)

    said = failure_of(run, program)
    assert "ranks 0, 2 wait in all_reduce Float[4160]; rank 1 returned without it" in said


def test_ddp_with_an_uneven_number_of_batches_and_a_barrier(run: Run) -> None:
    def program(ctx: Context) -> None:
        batches(ctx, 2 if ctx.rank == 1 else 3)
        dist.barrier()

    assert_parted(failure_of(run, program))


def test_ddp_with_an_uneven_number_of_batches_and_sums_of_as_many(run: Run) -> None:
    def program(ctx: Context) -> None:
        batches(ctx, 2 if ctx.rank == 1 else 3)
        dist.all_reduce(torch.ones(4160, dtype=torch.int32))

    assert "rank 1 passed Int[4160]" in failure_of(run, program)


def test_ddp_with_buffers_that_it_sends_from_rank_0(run: Run) -> None:
    def program(ctx: Context) -> None:
        layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        model = torch.nn.parallel.DistributedDataParallel(layers)
        for _ in range(2 if ctx.rank == 1 else 3):
            model(torch.ones(2, 8)).sum().backward()

    said = failure_of(run, program)
    assert "rank 1 returned without it" in said


def test_ddp_of_which_one_rank_accumulates_gradients(run: Run) -> None:
    def program(ctx: Context) -> None:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
        with model.no_sync() if ctx.rank == 1 else contextlib.nullcontext():
            model(torch.ones(2, 64)).sum().backward()
        dist.barrier()

    assert_parted(failure_of(run, program))


def test_fsdp_with_an_uneven_number_of_batches(run: Run) -> None:
    def program(ctx: Context) -> None:
        from torch.distributed.fsdp import fully_shard

        model = torch.nn.Linear(6, 6)
        fully_shard(model, mesh=ctx.mesh((3,)))
        for _ in range(1 if ctx.rank == 1 else 2):
            model(torch.ones(2, 6)).sum().backward()

    assert "rank 1 returned without it" in failure_of(run, program)


# Below are runs that end well if somebody waits.


def asynchronous_in_other_orders(ctx: Context) -> None:
    groups = [dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])]
    work = [dist.all_reduce(one(), group=group, async_op=True) for group in (groups if ctx.rank else groups[::-1])]
    if ctx.rank == 2:
        time.sleep(SLOW)
    for each in work:
        each.wait()
    dist.barrier()


def slow_in_another_group(ctx: Context) -> None:
    pair, every = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    if ctx.rank == 1:
        time.sleep(SLOW)
    if ctx.rank < 2:
        dist.all_reduce(one(), group=pair)
    dist.all_reduce(one(), group=every)


@pytest.mark.parametrize("program", [asynchronous_in_other_orders, slow_in_another_group])
def test_what_only_takes_long_is_waited_for(run: Run, program: Callable[[Context], None]) -> None:
    start = time.monotonic()
    run(program)
    assert time.monotonic() - start >= SLOW


def other_lists(ctx: Context) -> None:
    dist.new_group([0, 1] if ctx.rank == 0 else [1])


def overlapping_lists(ctx: Context) -> None:
    group = dist.new_group([0, 1] if ctx.rank == 0 else [1, 2])
    if ctx.rank < 2:
        dist.all_reduce(one(), group=group)


def one_group_more(ctx: Context) -> None:
    if ctx.rank == 0:
        dist.new_group([0])
    dist.new_group([0, 1])


@pytest.mark.parametrize(
    ("program", "lists"),
    [
        (other_lists, "rank 0 passed [0, 1]; rank 1 passed [1]"),
        (overlapping_lists, "rank 0 passed [0, 1]; rank 1 passed [1, 2]"),
        (one_group_more, "rank 0 passed [0]; rank 1 passed [0, 1]"),
    ],
)
def test_new_group_with_different_lists(run: Run, program: Callable[[Context], None], lists: str) -> None:
    assert failure_of(run, program) == (
        f"{program.__name__} on 3 ranks (gloo) can never end: the ranks passed different lists to new_group for "
        f"group 1: {lists}. Every rank must call new_group for each group, with the same list and in the same order, "
        "also for those that it is not in"
    )


def groups_apart(ctx: Context) -> None:
    if ctx.rank == 2:
        time.sleep(SLOW)
    pair = [dist.new_group([0, 1]), dist.new_group([2])][ctx.rank == 2]
    dist.barrier(group=pair)
    dist.barrier(group=dist.new_group([0, 1, 2]))


def test_a_rank_that_comes_late_to_new_group_is_waited_for(run: Run) -> None:
    run(groups_apart)


def test_two_threads_of_a_rank_on_one_group(run: Run) -> None:
    def program(ctx: Context) -> None:
        other = threading.Thread(target=lambda: dist.broadcast(torch.ones(8), src=0), name="prefetch")
        if ctx.rank == 1:
            other.start()
            other.join(0.3)
        dist.all_reduce(one())
        if ctx.rank != 1:
            other.start()
        other.join()

    start = time.monotonic()
    with pytest.raises(CollectiveMismatch) as caught:
        run(program)
    assert time.monotonic() - start < GRACE + SPARE
    assert notes(caught.value)[-1] == (
        "rank 1 issues from several threads on group 0 (ranks 0, 1, 2): its thread prefetch and its main thread. Which "
        "comes first may differ from rank to rank: give each thread a group of its own"
    )


def test_a_thread_with_a_group_of_its_own_is_not_blamed(run: Run) -> None:
    def program(ctx: Context) -> None:
        own = dist.new_group([0, 1, 2])
        other = threading.Thread(target=lambda: dist.broadcast(torch.ones(8), src=0, group=own), name="prefetch")
        other.start()
        dist.all_reduce(torch.ones(4, dtype=torch.int32 if ctx.rank else torch.float32))
        other.join()

    with pytest.raises(CollectiveMismatch, match="rank 0 passed Float") as caught:
        run(program)
    assert not any("threads" in note for note in notes(caught.value))
