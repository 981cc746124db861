"""The debugger on the rank that failed."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_gpuperf import Context, RankDied
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.ranks.processes import alive, survivors


@pytest.fixture
def debugged(torch_client: ForkserverClient) -> Iterator[Pool]:
    pool = Pool(LocalNode(torch_client), PoolSpec(2), {}, debug=True)
    pool.open_group("first", 60)
    yield pool
    pool.close()
    pool.kill()


class User:
    """Types a few lines and keeps what is printed."""

    def __init__(self, *lines: str) -> None:
        self.printed: list[str] = []
        self._lines = list(lines)

    def __call__(self, text: str) -> str:
        self.printed.append(text)
        return self._lines.pop(0) if self._lines else ""


def run(pool: Pool, program: Any) -> None:
    task = payload.dumps((program, (), {}), [sys.modules[__name__]])
    pool.run(task, program="p", seed=0, timeout=60)


def fail(ctx: Context) -> None:
    secret = 20 + ctx.rank
    raise ValueError("look at", secret)


def test_the_user_sees_the_frame_and_the_variables_of_the_rank_that_failed(debugged: Pool) -> None:
    with pytest.raises(ValueError):
        run(debugged, fail)
    assert debugged.failure is not None
    rank = debugged.failure.rank
    assert rank is not None
    user = User("p secret * 2\n", "p ctx.rank\n", "q\n")
    assert debugged.debug(user)
    where, product, number = user.printed
    assert f"{__file__}(" in where
    assert '-> raise ValueError("look at", secret)' in where
    assert product.splitlines()[0] == str(2 * (20 + rank))
    assert number.splitlines()[0] == str(rank)
    # All of them raised, and are as good as before.
    debugged.open_group("second", 60)
    run(debugged, lambda ctx: None)


def test_the_end_of_the_input_leaves_the_debugger(debugged: Pool) -> None:
    with pytest.raises(ValueError):
        run(debugged, fail)
    assert debugged.debug(User())


@pytest.mark.parametrize("command", ["q", "c"])
def test_leaving_the_debugger_leaves_nothing_behind(debugged: Pool, command: str) -> None:
    with pytest.raises(ValueError):
        run(debugged, fail)
    assert debugged.debug(User(f"{command}\n"))
    assert debugged.settle() == []


def test_the_rank_that_failed_is_held_where_the_others_had_to_be_killed(debugged: Pool) -> None:
    def program(ctx: Context) -> None:
        if ctx.rank == 1:
            fail(ctx)
        ctx.barrier()

    pids = debugged.pids
    with pytest.raises(ValueError):
        run(debugged, program)
    assert survivors(pids[:1]) == []
    assert alive(pids[1])
    assert not debugged.alive
    user = User("p secret\n", "c\n")
    assert debugged.debug(user)
    assert user.printed[1].splitlines()[0] == "21"
    debugged.kill()
    assert survivors(pids) == []


def test_there_is_nobody_to_debug_after_a_death_or_a_good_run(debugged: Pool) -> None:
    run(debugged, lambda ctx: None)
    assert not debugged.debug(User())
    with pytest.raises(RankDied):
        run(debugged, lambda ctx: os._exit(1))
    assert not debugged.debug(User())


def test_frames_are_not_kept_where_nobody_debugs(pool: Pool) -> None:
    with pytest.raises(ValueError):
        run(pool, fail)
    user = User("p secret\n")
    assert pool.debug(user)
    assert user.printed == []
