"""The tests of the plugin's arm, which copies this file to an empty folder and has pytest run it there."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf import Context, RankDied, Ranks
from pytest_gpuperf.markers import MARKERS

SIZE, TESTS, EXAMPLES = (int(os.environ[f"ARM_{name}"]) for name in ("RANKS", "TESTS", "EXAMPLES"))
HAS_ISOLATION = "isolation" in MARKERS[0]
FRESH = {"isolation": "process"} if HAS_ISOLATION else {}

drawn = settings(max_examples=EXAMPLES, deadline=None, database=None)


def all_reduce(ctx: Context, scale: int) -> float:
    """The program of every test but one."""
    x = torch.full((4,), float(scale * (ctx.rank + 1)), device=ctx.device)
    dist.all_reduce(x)
    assert x.tolist() == [float(x[0])] * 4
    return float(x[0])


def sums(scale: int) -> list[float]:
    """What it returns on the ranks."""
    return [scale * SIZE * (SIZE + 1) / 2] * SIZE


def die_on_last_rank(ctx: Context) -> None:
    """Leaves a pool that has to be replaced."""
    if ctx.rank == ctx.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.ranks(SIZE)
def test_first(ranks: Ranks) -> None:
    """Starts the forkserver, the ranks and their group."""
    assert ranks.run(all_reduce, 1) == sums(1)


@pytest.mark.ranks(SIZE)
@pytest.mark.parametrize("repeat", range(5 * TESTS))
def test_warm(ranks: Ranks, repeat: int) -> None:
    """Finds ranks, and gets a group."""
    assert ranks.run(all_reduce, 1) == sums(1)


@pytest.mark.skipif(not HAS_ISOLATION, reason="the installed pytest-gpuperf's ranks marker has no isolation=")
@pytest.mark.ranks(SIZE, **FRESH)
@pytest.mark.parametrize("repeat", range(1 + TESTS))  # the first one is not measured
def test_fresh(ranks: Ranks, repeat: int) -> None:
    """Gets ranks and a group."""
    assert ranks.run(all_reduce, 1) == sums(1)


@pytest.mark.ranks(SIZE)
@drawn
@given(scale=st.integers(0, 1000))
def test_examples(ranks: Ranks, scale: int) -> None:
    """Many examples on one live group."""
    assert ranks.run(all_reduce, scale) == sums(scale)


@drawn
@given(scale=st.integers(0, 1000))
def test_examples_without_ranks(scale: int) -> None:
    """What hypothesis itself costs."""
    assert sums(scale) == [scale * SIZE * (SIZE + 1) / 2] * SIZE


@pytest.mark.ranks(SIZE)
@pytest.mark.parametrize("step", ["killed", "restarted"] * TESTS)
def test_restart(ranks: Ranks, step: str) -> None:
    """By turns kills a rank, and finds its pool replaced."""
    if step == "restarted":
        assert ranks.run(all_reduce, 1) == sums(1)
    else:
        with pytest.raises(RankDied, match="SIGKILL"):
            ranks.run(die_on_last_rank)
