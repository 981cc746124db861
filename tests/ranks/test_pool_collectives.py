"""Ranks that do not issue the same collectives: where they part, and what is no difference."""

import sys
import threading
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import CollectiveMismatch, Context, RankTimeout
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.ranks.conftest import Call, notes, pids
from tests.ranks.processes import survivors


def test_ranks_that_part_in_their_collectives_are_told_where(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        x = torch.ones(4)
        dist.all_reduce(x)
        if ctx.rank == 1:
            dist.broadcast(x, src=0)
        else:
            dist.all_reduce(x)

    processes = pids(call)
    with pytest.raises(RankTimeout) as caught:
        call(program, timeout=0.5)
    assert notes(caught.value)[-1] == (
        "the ranks part at collective 2 of the program: rank 0 issued all_reduce Float[4]; rank 1 issued broadcast "
        "Float[4]"
    )
    assert pool.failure is not None
    assert pool.failure.sections[0] == (
        "collectives",
        "last collective of rank 0: all_reduce Float[4], its collective 2\n"
        "last collective of rank 1: broadcast Float[4], its collective 2",
    )
    assert survivors(processes) == []


def test_a_collective_that_only_some_ranks_issue_is_an_error_though_all_return(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        dist.all_reduce(torch.ones(4))
        if ctx.rank == 1:
            dist.all_reduce(torch.ones(2, 3, dtype=torch.int64), async_op=True)

    processes = pids(call)
    with pytest.raises(CollectiveMismatch) as caught:
        call(program)
    assert str(caught.value) == (
        "all ranks returned from program, but not from the same collectives on the default group (gloo): rank 0 "
        "issued 1; rank 1 issued 2. Every rank of a group must issue each of its collectives"
    )
    assert notes(caught.value) == [
        "ranks 0, 1 returned",
        "rank 0 never issued all_reduce Long[2, 3] (collective 2 of the program), which rank 1 did",
    ]
    assert not pool.alive  # rank 1 may still wait, in a thread
    assert survivors(processes) == []


@pytest.fixture
def three(torch_client: ForkserverClient) -> Iterator[Pool]:
    pool = Pool(LocalNode(torch_client), PoolSpec(3), {})
    pool.open_group("first", 60)
    yield pool
    pool.close()


def test_sends_and_receives_are_no_collectives_that_all_must_issue(three: Pool) -> None:
    def program(ctx: Context) -> None:
        if ctx.rank == 0:
            dist.send(torch.ones(1), dst=1)
        elif ctx.rank == 1:
            dist.recv(torch.ones(1), src=0)
        dist.barrier()

    task = payload.dumps((program, (), {}), [sys.modules[__name__]])
    for _ in range(2):
        assert len(three.run(task, program="p", seed=0, timeout=60)) == 3


def test_ranks_that_are_in_no_subgroup_tell_their_collectives_too(three: Pool) -> None:
    def program(ctx: Context) -> None:
        group = dist.new_group([1, 2])
        if ctx.rank:
            dist.all_reduce(torch.ones(1), group=group)
        if ctx.rank == 2:
            threading.Event().wait()
        if ctx.rank == 1:
            dist.all_reduce(torch.ones(2), group=group)

    task = payload.dumps((program, (), {}), [sys.modules[__name__]])
    with pytest.raises(RankTimeout) as caught:
        three.run(task, program="p", seed=0, timeout=0.5)
    assert notes(caught.value)[-1] == (
        "rank 2 never issued all_reduce Float[2] (collective 2 of the program), which rank 1 did (group of ranks 1, 2)"
    )
    assert three.failure is not None
    assert "last collective of rank 0: none" in dict(three.failure.sections)["collectives"]


def test_a_group_of_one_rank_is_its_own_business(call: Call) -> None:
    def program(ctx: Context) -> None:
        own = [dist.new_group([rank]) for rank in range(ctx.world_size)][ctx.rank]
        for _ in range(ctx.rank):
            dist.all_reduce(torch.ones(1), group=own)

    call(program)
