"""Ranks that wait for a collective that cannot come any more, and ranks that only take long."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import CollectiveMismatch, Context, RankTimeout
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.ranks.conftest import notes
from tests.ranks.processes import survivors

GRACE = 1.0
SLOW = 3.0  # seconds: much more than the grace
LEAST = 0.7 * GRACE

Run = Callable[..., list[Any]]


@pytest.fixture
def pool(torch_client: ForkserverClient) -> Iterator[Pool]:
    """Three ranks with a short grace."""
    pool = Pool(LocalNode(torch_client), PoolSpec(3), {"PATH": "/bin"}, grace=GRACE)
    pool.open_group("first", 60)
    yield pool
    pool.close()


@pytest.fixture
def run(pool: Pool) -> Run:
    def run(function: Callable[..., Any], timeout: float = 60.0) -> list[Any]:
        task = payload.dumps((function, (), {}), [sys.modules[__name__]])
        parcels = pool.run(task, program="program", seed=0, timeout=timeout)
        return [payload.loads(parcel) for parcel in parcels]

    return run


def one() -> torch.Tensor:
    return torch.ones(4)


def failure_of(run: Run, program: Callable[[Context], Any]) -> CollectiveMismatch:
    """How a program fails that no time would cure: soon after the grace."""
    start = time.monotonic()
    with pytest.raises(CollectiveMismatch) as caught:
        run(program)
    assert LEAST <= time.monotonic() - start < GRACE + 3.0
    return caught.value


def test_a_rank_that_returned_without_a_collective_is_not_waited_for(pool: Pool, run: Run) -> None:
    def program(ctx: Context) -> None:
        dist.all_reduce(one())
        if ctx.rank:
            dist.all_reduce(one())

    pids = pool.pids
    error = failure_of(run, program)
    assert str(error) == (
        "program on 3 ranks (gloo) can never end: ranks 1, 2 wait in all_reduce Float[4]; rank 0 returned without it. "
        "Every rank of a group must issue each of its collectives, in the same order"
    )
    assert notes(error)[0] == "rank 0 returned"
    assert notes(error)[-1] == (
        "rank 0 never issued all_reduce Float[4] (collective 2 of the program), which ranks 1, 2 did"
    )
    assert pool.failure is not None
    assert pool.failure.cause == "mismatched collectives"
    assert any("in program" in stack for title, stack in pool.failure.sections if title.startswith("stack of rank"))
    assert not pool.alive
    assert survivors(pids) == []


def wait_for_work() -> None:
    dist.all_reduce(one(), async_op=True).wait()


def wait_for_objects() -> None:
    dist.all_gather_object([None] * 3, "object")


def wait_for_a_functional_one() -> None:
    from torch.distributed._functional_collectives import all_reduce

    group = dist.group.WORLD
    assert group is not None
    all_reduce(one(), "sum", group).sum().item()


def wait_in_a_barrier() -> None:
    dist.barrier()


@pytest.mark.parametrize("wait", [wait_for_work, wait_for_objects, wait_for_a_functional_one, wait_in_a_barrier])
def test_however_the_others_wait(run: Run, wait: Callable[[], None]) -> None:
    def program(ctx: Context) -> None:
        if ctx.rank != 1:
            wait()

    def once(ctx: Context) -> None:
        wait()  # which may import a lot

    run(once)
    assert "ranks 0, 2 wait in" in str(failure_of(run, program))


def test_ranks_in_different_collectives_are_not_waited_for(run: Run) -> None:
    def program(ctx: Context) -> None:
        dist.barrier()
        if ctx.rank:
            dist.all_reduce(one())
        else:
            dist.broadcast(one(), src=1)

    assert str(failure_of(run, program)) == (
        "program on 3 ranks (gloo) can never end: ranks 1, 2 wait in all_reduce Float[4]; rank 0 issued broadcast "
        "Float[4] in its place. Every rank of a group must issue each of its collectives, in the same order"
    )


def test_ranks_that_pass_unlike_numbers_of_elements_are_not_waited_for(run: Run) -> None:
    def program(ctx: Context) -> None:
        group = dist.new_group([1, 2])
        if ctx.rank:
            dist.all_reduce(torch.ones(ctx.rank * 1_000_000), group=group)

    assert str(failure_of(run, program)) == (
        "program on 3 ranks (gloo) can never end: rank 2 waits in all_reduce Float[2000000]; rank 1 issued all_reduce "
        "Float[1000000] in its place. Every rank of a group must issue each of its collectives, in the same order, "
        "with as many elements"
    )


def test_a_subgroup_is_watched_too(run: Run) -> None:
    def program(ctx: Context) -> None:
        group = dist.new_group([1, 2])
        if ctx.rank == 2:
            dist.broadcast(one(), group_src=0, group=group)

    assert "rank 2 waits in broadcast Float[4]; rank 1 returned without it" in str(failure_of(run, program))


# Below are runs that end well if somebody waits.


def slow_to_arrive(ctx: Context) -> None:
    if ctx.rank == 0:
        time.sleep(SLOW)
    dist.all_reduce(one())


def slow_in_another_kind(ctx: Context) -> None:
    dist.barrier()
    if ctx.rank == 0:
        time.sleep(SLOW)
    dist.all_gather_object([None] * 3, "object")


def returned_with_work_left(ctx: Context) -> None:
    if ctx.rank == 0:
        kept.append(dist.all_reduce(one(), async_op=True))
        return
    if ctx.rank == 1:
        time.sleep(SLOW)
    dist.all_reduce(one())


kept: list[Any] = []


def another_subgroup(ctx: Context) -> None:
    group = dist.new_group([1, 2])
    if ctx.rank == 1:
        time.sleep(SLOW)
    if ctx.rank:
        dist.all_reduce(one(), group=group)


def a_slow_send(ctx: Context) -> None:
    if ctx.rank == 1:
        time.sleep(SLOW)
        dist.send(one(), dst=2)
    if ctx.rank == 2:
        dist.recv(one(), src=1)


def a_slow_send_behind_work_of_a_subgroup(ctx: Context) -> None:
    group = dist.new_group([0, 2])
    if ctx.rank == 2:
        kept.append(dist.all_reduce(one(), group=group, async_op=True))  # which rank 0 never issues, and nobody awaits
        dist.recv(one(), src=1)
    if ctx.rank == 1:
        time.sleep(SLOW)
        dist.send(one(), dst=2)


def a_thread_goes_on(ctx: Context) -> None:
    def later() -> None:
        time.sleep(SLOW)
        dist.all_reduce(one())

    if ctx.rank == 0:
        threading.Thread(target=later, name="issues later").start()
    else:
        dist.all_reduce(one())


def monitored(ctx: Context) -> None:
    if ctx.rank == 2:
        time.sleep(SLOW)
    dist.monitored_barrier(timeout=timedelta(seconds=30))


def by_the_store(ctx: Context) -> None:
    if ctx.rank == 1:
        time.sleep(SLOW)
        ctx.store.set("there", "yes")
    if ctx.rank == 2:
        ctx.store.wait(["there"])


def a_broadcast_whose_root_is_slow(ctx: Context) -> None:
    group = dist.new_group([0, 1, 2])
    if ctx.rank == 1:
        time.sleep(SLOW)
    if ctx.rank:
        dist.broadcast(one(), src=1, group=group)


def computing(ctx: Context) -> None:
    if ctx.rank:
        until = time.monotonic() + SLOW
        while time.monotonic() < until:
            torch.ones(64, 64) @ torch.ones(64, 64)


@pytest.mark.parametrize(
    "program",
    [
        slow_to_arrive,
        slow_in_another_kind,
        returned_with_work_left,
        another_subgroup,
        a_slow_send,
        a_slow_send_behind_work_of_a_subgroup,
        a_thread_goes_on,
        monitored,
        by_the_store,
        computing,
    ],
)
def test_what_only_takes_long_is_waited_for(run: Run, program: Callable[[Context], None]) -> None:
    start = time.monotonic()
    # A rank that returned before its thread has issued, or that left work behind, may be told of in the end, as ever.
    unequal = program in (a_thread_goes_on, a_slow_send_behind_work_of_a_subgroup)
    with contextlib.suppress(CollectiveMismatch) if unequal else contextlib.nullcontext():
        run(program)
    assert time.monotonic() - start >= SLOW


def test_what_an_earlier_group_of_the_same_name_issued_is_no_reason(pool: Pool, run: Run) -> None:
    def barriers(ctx: Context) -> None:
        for _ in range(4):
            dist.barrier()

    run(barriers)
    pool.open_group("second", 60)
    start = time.monotonic()
    run(slow_to_arrive)
    assert time.monotonic() - start >= SLOW


def test_a_broadcast_whose_root_is_slow_is_given_its_time(run: Run) -> None:
    # Rank 0 never issued it, which need not keep rank 2 from getting what it waits for.
    start = time.monotonic()
    with pytest.raises(CollectiveMismatch, match=r"rank [12] waits in broadcast Float\[4\]; rank 0 returned"):
        run(a_broadcast_whose_root_is_slow)
    assert time.monotonic() - start >= SLOW


def test_ranks_that_measure_are_not_asked_before_one_has_returned(torch_client: ForkserverClient) -> None:
    pool = Pool(LocalNode(torch_client), PoolSpec(2, timed=True), {}, grace=0.2)

    def program(ctx: Context) -> None:
        if ctx.rank:
            dist.all_reduce(one())
        else:
            dist.barrier()

    try:
        pool.open_group("first", 60)
        task = payload.dumps((program, (), {}), [sys.modules[__name__]])
        with pytest.raises(RankTimeout):
            pool.run(task, program="p", seed=0, timeout=2.0)
    finally:
        pool.close()
