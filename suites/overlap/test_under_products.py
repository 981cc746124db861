"""Each way to add up the ranks' vectors gives their sum, exactly and in each step, whatever is computed meanwhile."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Ranks
from suites.overlap.programs import under_products as programs
from suites.shared.comparison import assert_close
from suites.shared.noted_calls import assert_in_turn, noted_groups
from suites.shared.one_slow_rank import with_one_slow_rank
from suites.shared.peer_memory import Allocate
from suites.shared.places import addends
from suites.shared.step import Step

LOAD = programs.Load(products=2, size=8, numel=60, dtype=torch.float64)
LARGE = programs.Load(products=1, size=8, numel=70_008, dtype=torch.float64)
STEPS = 3
ON_CPUS = [way for way in programs.WAYS if way not in programs.ON_GPUS]


def expected(ctx: Context, load: programs.Load, turn: int) -> torch.Tensor:
    """The sum of what all ranks add at this turn."""
    total = torch.zeros(load.numel, dtype=torch.float64, device=ctx.device)
    for rank in range(ctx.world_size):
        total += addends(
            load.numel,
            dtype=programs.SUMMED,
            rank=rank,
            ranks=ctx.world_size,
            device=ctx.device,
            start=turn * load.numel,
        )
    return total


def compare(ctx: Context, way: str, load: programs.Load) -> None:
    """Takes several steps, each with other vectors, and compares where the sums lie."""
    summing = programs.WAYS[way](ctx, load=load)
    for turn in range(STEPS):
        mine = programs.vector(ctx, load, turn)
        ctx.barrier()  # nobody reads the last turn's vectors any more
        summing.mine.copy_(mine)
        ctx.barrier()
        where = f"rank {ctx.rank}, {way}, step {turn}"
        assert_close(summing.summed().double(), expected(ctx, load, turn), where)
        assert_close(summing.mine, mine, f"{where}, what the rank adds")


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("load", [LOAD, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("way", ON_CPUS)
def test_sums(ranks: Ranks, way: str, load: programs.Load) -> None:
    ranks.run(compare, way, load)


@pytest.mark.ranks(2, 4, nodes=1, device="cuda")
@pytest.mark.parametrize("way", programs.ON_GPUS)
def test_sums_on_gpus(ranks: Ranks, way: str) -> None:
    ranks.run(compare, way, LARGE)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("way", ON_CPUS)
def test_both_at_once(ranks: Ranks, way: str) -> None:
    """Neither the product nor the sum is another one for being made beside the other."""

    def both(ctx: Context) -> None:
        step = programs.together(ctx, load=LOAD, way=way)
        alone = programs.products(ctx, load=LOAD)
        for turn in range(STEPS):
            product, total = step()
            where = f"rank {ctx.rank}, {way}, step {turn}"
            assert_close(product, alone()[0], f"{where}, product")
            assert_close(total.double(), expected(ctx, LOAD, 0), f"{where}, sum")

    ranks.run(both)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", [way for way in programs.WAYS if way.startswith("nccl")])
def test_a_sum_is_made_in_a_group_of_its_own(ranks: Ranks, way: str) -> None:
    """Which has the options of the way: the default group would give the same sums."""

    def default(ctx: Context) -> list[bool]:
        step = programs.sum_alone(ctx, load=LOAD, way=way)
        with noted_groups("all_reduce") as called:
            step()
        return [group is ctx.group for group in called]

    assert ranks.run(default) == [[False]] * 2


@pytest.mark.ranks(2)
def test_flop_are_those_of_torchs_counter(ranks: Ranks) -> None:
    """Each product gives what the one before gave: a product too few is seen by what it takes alone."""

    def counted(ctx: Context) -> list[float]:
        steps = [programs.products(ctx, load=LOAD), programs.together(ctx, load=LOAD, way="nccl")]
        counts = []
        for step in steps:
            with FlopCounterMode(display=False) as counter:
                step()
            counts.append(counter.get_total_flops())
        return counts

    assert ranks.run(counted) == [[LOAD.flop] * 2] * 2


def changing(ctx: Context, *, allocate: Allocate) -> Step[torch.Tensor]:
    """Sums by copies, of other vectors in each step."""
    summing, turns = programs.by_copies(ctx, load=LOAD, allocate=allocate), itertools.count()

    def step() -> torch.Tensor:
        summing.mine.copy_(programs.vector(ctx, LOAD, next(turns)))
        return summing.summed().clone()

    return step


@pytest.mark.ranks(2, device="cpu")
def test_copies_wait_for_a_slow_rank(ranks: Ranks) -> None:
    def compare(ctx: Context) -> None:
        for turn, total in enumerate(with_one_slow_rank(ctx, changing, STEPS)):
            assert_close(total.double(), expected(ctx, LOAD, turn), f"rank {ctx.rank}, step {turn}")

    ranks.run(compare)


def test_copies_are_from_one_rank_after_another() -> None:
    assert_in_turn(partial(programs.by_copies, load=LOAD), ranks=3)


@pytest.mark.ranks(2)
def test_copies_of_parts_that_are_unequal_are_refused(ranks: Ranks) -> None:
    load = programs.Load(products=1, size=4, numel=7, dtype=torch.float64)
    with pytest.raises(ValueError, match="7 elements make no 2 equal parts: choose a multiple"):
        ranks.run(lambda ctx: programs.by_copies(ctx, load=load) and None)
