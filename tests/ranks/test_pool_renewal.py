"""What of the process groups is renewed after a test or an exception, and that the next run finds them whole."""

import gc
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from pytest_gpuperf.ranks.failures import RankDied
from pytest_gpuperf.ranks.groups import Groups
from pytest_gpuperf.ranks.messages import Compare, OpenGroup, Settle
from pytest_gpuperf.ranks.pool import Pool
from tests.ranks.conftest import Call, pids


def at_once(ctx: Context) -> None:
    raise ValueError(ctx.rank)


def with_a_group_of_its_own(ctx: Context) -> None:
    dist.new_group([0, 1])
    raise ValueError(ctx.rank)


def after_a_collective(ctx: Context) -> None:
    dist.all_reduce(torch.ones(1))
    raise ValueError(ctx.rank)


def after_a_collective_of_a_subgroup(ctx: Context) -> None:
    dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))
    raise ValueError(ctx.rank)


def after_a_message(ctx: Context) -> None:
    (dist.send if ctx.rank == 0 else dist.recv)(torch.ones(1), 1 - ctx.rank)
    raise ValueError(ctx.rank)


def after_its_group(ctx: Context) -> None:
    dist.destroy_process_group()
    raise ValueError(ctx.rank)


def in_the_middle_of_a_batch(ctx: Context) -> None:
    with dist._coalescing_manager():
        raise ValueError(ctx.rank)


def with_torchs_state_broken(ctx: Context) -> None:
    class Broken(dict[Any, Any]):
        def __len__(self) -> int:
            raise KeyError("of the test")

    dist.distributed_c10d._world._pg_coalesce_state = Broken()
    raise ValueError(ctx.rank)


def on_one_rank(ctx: Context) -> None:
    if ctx.rank == 1:
        raise ValueError(ctx.rank)


@pytest.mark.parametrize(
    ("fail", "fresh"),
    [
        (at_once, False),
        (with_a_group_of_its_own, False),
        (after_a_collective, True),
        (after_a_collective_of_a_subgroup, True),
        (after_a_message, True),
        (after_its_group, True),
        (in_the_middle_of_a_batch, True),
        (with_torchs_state_broken, True),
        (on_one_rank, True),
    ],
)
def test_an_exception_leaves_the_processes_and_renews_the_group(
    pool: Pool, call: Call, monkeypatch: pytest.MonkeyPatch, fail: Callable[[Context], None], fresh: bool
) -> None:
    processes = pids(call)
    with pytest.raises(ValueError, match=r"(?m)^[01]$"):
        call(fail)
    assert pool.alive
    exchange = mock.Mock(wraps=pool._exchange)
    monkeypatch.setattr(pool, "_exchange", exchange)
    pool.open_group("first", 60)  # the same name: what the ranks may disagree in is not trusted
    (request,) = (call.args[0] for call in exchange.mock_calls)
    assert isinstance(request, OpenGroup)
    assert request.fresh is fresh
    assert pids(call) == processes

    def total(ctx: Context) -> float:
        x = torch.ones(1)
        dist.all_reduce(x)
        return float(x)

    assert call(total) == [2.0, 2.0]


def all_reduce(ctx: Context) -> int:
    dist.all_reduce(torch.ones(1))
    return id(dist.group.WORLD)


def unchanged_after(ctx: Context, change: Callable[[Context], object] | None) -> int | None:
    """What a rank answers about its groups after a change. They stand for groups that were split from a base."""
    (groups,) = (found for found in gc.get_objects() if type(found) is Groups)
    dist.all_reduce(torch.ones(1))
    groups._opened = groups._read_state()
    if change is not None:
        change(ctx)
    return groups.count_unchanged()


def make_and_destroy_a_group(ctx: Context) -> None:
    dist.destroy_process_group(dist.new_group([0, 1]))


def meet_in_the_store(ctx: Context) -> None:
    if ctx.rank == 0:
        dist.distributed_c10d._get_default_store().set("of the test", "1")


def set_a_timeout(ctx: Context) -> None:
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=7))


def leave_a_batch_open(ctx: Context) -> None:
    dist.distributed_c10d._world.pg_coalesce_state[dist.distributed_c10d._get_default_group()] = []


def replace_the_group(ctx: Context) -> None:
    dist.distributed_c10d._update_default_pg(dist.new_group([0, 1]))


def destroy_the_group(ctx: Context) -> None:
    dist.destroy_process_group()


def break_torchs_state(ctx: Context) -> None:
    del dist.distributed_c10d._world._pg_coalesce_state


def test_a_group_that_only_computed_is_unchanged(call: Call) -> None:
    before = call(unchanged_after, None)
    after = call(unchanged_after, all_reduce)
    assert [then + 2 for then in before] == after


@pytest.mark.parametrize(
    "change",
    [
        make_and_destroy_a_group,
        set_a_timeout,
        leave_a_batch_open,
        replace_the_group,
        destroy_the_group,
        break_torchs_state,
    ],
)
def test_what_a_program_changes_of_the_groups_is_seen(call: Call, change: Callable[[Context], None]) -> None:
    assert call(unchanged_after, change) == [None, None]


def test_a_key_in_the_store_is_seen_by_its_owner(call: Call) -> None:
    first, second = call(unchanged_after, meet_in_the_store)
    assert first is None
    assert second is not None


def test_a_group_that_is_not_split_is_never_kept(pool: Pool, call: Call) -> None:
    def told(ctx: Context) -> int | None:
        (groups,) = (found for found in gc.get_objects() if type(found) is Groups)
        return groups.count_unchanged()

    assert call(told) == [None, None]


def have_the_ranks_say(ctx: Context, told: list[int | None]) -> None:
    number = told[ctx.rank]
    Groups.count_unchanged = lambda self: number  # type: ignore[method-assign]


def requests_until_the_next_test(pool: Pool, monkeypatch: pytest.MonkeyPatch, timeout: float = 60) -> list[object]:
    """What the ranks are asked from the end of a test until the next one has its group, as if on GPUs."""
    exchange = mock.Mock(wraps=pool._exchange)
    monkeypatch.setattr(pool, "spec", replace(pool.spec, gpus=("0", "1")))
    monkeypatch.setattr(pool, "_exchange", exchange)
    assert not pool.settle()
    pool.open_group("second", timeout)
    return [call.args[0] for call in exchange.mock_calls]


def test_an_unchanged_group_is_the_next_tests(pool: Pool, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    before = call(all_reduce)
    call(have_the_ranks_say, [5, 5])
    asked, settle, again = requests_until_the_next_test(pool, monkeypatch)
    assert isinstance(asked, Compare)
    assert isinstance(settle, Settle)
    assert settle.keep
    assert isinstance(again, Compare)
    assert call(all_reduce) == before


@pytest.mark.parametrize("told", [[5, None], [5, 6], [None, None]])
def test_all_ranks_must_find_the_group_unchanged(
    pool: Pool, call: Call, monkeypatch: pytest.MonkeyPatch, told: list[int | None]
) -> None:
    call(have_the_ranks_say, told)
    _, settle, opening = requests_until_the_next_test(pool, monkeypatch)
    assert isinstance(settle, Settle)
    assert not settle.keep
    assert isinstance(opening, OpenGroup)


def test_a_test_with_another_timeout_has_a_group_of_its_own(
    pool: Pool, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(have_the_ranks_say, [5, 5])
    assert isinstance(requests_until_the_next_test(pool, monkeypatch, timeout=61)[-1], OpenGroup)


def test_ranks_that_rest_keep_nothing(pool: Pool, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call(have_the_ranks_say, [5, 5])
    requests_until_the_next_test(pool, monkeypatch)
    assert not pool.settle()
    pool.rest()
    pool.open_group("third", 60)
    exchange: Any = pool._exchange
    assert isinstance(exchange.mock_calls[-1].args[0], OpenGroup)


def test_a_rank_that_died_between_two_tests_is_noticed_before_the_second(
    pool: Pool, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(have_the_ranks_say, [5, 5])
    monkeypatch.setattr(pool, "spec", replace(pool.spec, gpus=("0", "1")))
    assert not pool.settle()
    process = os.pidfd_open(pool.pids[1])
    os.kill(pool.pids[1], signal.SIGKILL)
    assert wait([process], timeout=10), "the rank has not ended"
    os.close(process)
    with pytest.raises(RankDied, match="rank 1"):
        pool.open_group("second", 60)
