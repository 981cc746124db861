"""What of the process groups is renewed after an exception, and that the next run finds them whole."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from pytest_gpuperf.ranks.messages import OpenGroup
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
