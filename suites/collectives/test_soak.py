"""For as long as is asked, collectives with changing sizes, dtypes and groups, each checked: ``--soak SECONDS``."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Ranks
from suites.collectives.programs import soak as soaking
from suites.collectives.programs.in_flight import NAMES, Flight
from suites.collectives.programs.soak import soak
from suites.shared.bits import bits_of
from suites.shared.strategies import FLOATS, INTEGERS

LEAST = 0.3  # seconds
SLICE = 20.0  # seconds of one run, far below its timeout


@pytest.mark.soak
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_soak(ranks: Ranks, soak_seconds: float) -> None:
    largest = 2**26 if ranks.backend == "nccl" else 100_000
    left, seed = max(LEAST, soak_seconds), 1
    while left > 0:
        told = ranks.run(soak, seconds=min(left, SLICE), seed=seed, largest=largest)
        wrong = [text for _, of_rank in told for text in of_rank]
        assert not wrong, "\n".join(wrong)
        assert all(done for done, _ in told), f"collectives of each rank: {[done for done, _ in told]}"
        left, seed = left - SLICE, seed + 1


class Corrupted:
    """Waits for a collective, in whose result a bit flips then."""

    def __init__(self, work: dist.Work, result: torch.Tensor) -> None:
        self._work, self._result = work, result

    def wait(self) -> None:
        self._work.wait()
        bits_of(self._result).view(-1)[-1] ^= 1


def corrupted(ctx: Context, *, seed: int, seconds: float = 0.0) -> tuple[int, list[str]]:
    """A soak in which a bit flips on the last rank, in the first all_reduce that it has in flight.

    Returns how many all_reduces the rank had in flight, and what the soak has found.
    """
    add, seen = dist.all_reduce, 0

    def added(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        nonlocal seen
        work = add(tensor, op, group, async_op)
        seen += async_op  # not the word that time is over
        flips = async_op and seen == 1 and ctx.rank == ctx.world_size - 1
        return Corrupted(work, tensor) if flips else work

    with mock.patch.object(dist, "all_reduce", added):
        _, wrong = soak(ctx, seconds=seconds, seed=seed, largest=9)
    return seen, wrong


def counted(ctx: Context) -> tuple[int, int]:
    """How many collectives the rank began in the shortest soak, and how many it says."""
    begin, begun = Flight.__init__, 0

    def counting(*args: Any) -> None:
        nonlocal begun
        begun += 1
        begin(*args)

    with mock.patch.object(Flight, "__init__", counting):
        done, _ = soak(ctx, seconds=0.0, seed=1, largest=9)
    return begun, done


@pytest.mark.ranks(2, 4)
def test_a_rank_counts_the_collectives_that_it_is_in(ranks: Ranks) -> None:
    told = ranks.run(counted)
    assert all(done == begun for begun, done in told), told
    if ranks.world_size > 2:
        assert len({done for _, done in told}) > 1, f"all ranks are in all collectives: {told}"


SEEDS = range(1, 9)
"""The seeds of soaks that differ in when the fault comes: in the first of their flights, later, or in none of them."""


@pytest.mark.ranks(2, 4)
def test_a_soak_reports_a_fault_whenever_it_comes(ranks: Ranks) -> None:
    by_rank = ranks.run(lambda ctx: [corrupted(ctx, seed=seed) for seed in SEEDS])
    last = ranks.world_size - 1
    flipped = [seen > 0 for seen, _ in by_rank[last]]
    assert sum(flipped) > len(SEEDS) / 2, "most soaks have no all_reduce: choose other seeds"
    for rank, soaks in enumerate(by_rank):
        for seed, flips, (_, wrong) in zip(SEEDS, flipped, soaks, strict=True):
            assert len(wrong) == (flips and rank == last), f"rank {rank}, seed {seed}: {wrong}"


def test_a_soak_draws_every_kind() -> None:
    """A soak draws collectives of each operation, dtype, group, reduction and root, of one element and of many."""
    drawn, memberships, largest = random.Random(1), [(0, 1, 2), (0, 2), (1, 2)], 10_000
    found = [soaking.drawn_collective(drawn, memberships, largest) for _ in range(2000)]
    assert {one.name for one in found} == set(NAMES)
    assert {one.dtype for one in found} == {*FLOATS, *INTEGERS}
    assert {(one.members, one.root) for one in found} == {(each, root) for each in memberships for root in each}
    assert {one.op for one in found if one.name == "all_reduce"} == {"sum", "avg", "min", "max", "product"}
    assert {one.op for one in found if one.name == "reduce_scatter"} == {"sum", "min", "max"}
    assert min(one.numel for one in found) == 1
    assert max(one.numel for one in found) > largest / 2
    uneven = [row for one in found if one.name == "all_to_all_uneven" for row in one.splits]
    assert any(0 in row and max(row) > 1 for row in uneven)
    assert len({one.seed for one in found}) > len(found) / 2


ENDLESS = 3600.0
"""Seconds: a soak that goes on behind a fault runs into the ranks' timeout."""


@pytest.mark.ranks(2, 4, timeout=60)
def test_a_soak_ends_soon_after_a_fault_of_any_rank(ranks: Ranks) -> None:
    by_rank = ranks.run(corrupted, seed=1, seconds=ENDLESS)
    assert [len(wrong) for _, wrong in by_rank] == [0] * (ranks.world_size - 1) + [1]
