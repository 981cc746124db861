"""Silent corruption: all results of a load are compared, for ``--soak SECONDS``, and how rare a fault would be seen."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Ranks
from suites.health import reference
from suites.health.programs import soak as programs
from suites.shared.bits import bits_of

LEAST = 0.1  # seconds
SLICE = 60.0  # seconds of one run, below its timeout


@pytest.mark.soak
@pytest.mark.ranks(2, 4, 8, largest=True)
def test_nothing_is_corrupted(ranks: Ranks, soak_seconds: float, record_property: Any) -> None:
    large = ranks.backend == "nccl"
    left, compared = max(LEAST, soak_seconds), dict.fromkeys(programs.SLOTS, 0)
    while left > 0:
        soaked = ranks.run(
            programs.soak, seconds=min(left, SLICE), width=2048 if large else 16, numel=2**18 if large else 64
        )
        told = list(reference.corruptions(soaked))
        assert not told, "\n".join(told)
        compared = {kind: compared[kind] + min(one.compared[kind] for one in soaked) for kind in compared}
        left -= SLICE
    for kind, count in compared.items():
        record_property(f"soak {kind}", count)


class Flipped:
    """Waits for a sum, in which a bit flips then."""

    def __init__(self, work: dist.Work, result: torch.Tensor) -> None:
        self._work, self._result = work, result

    def wait(self) -> None:
        self._work.wait()
        bits_of(self._result).view(-1)[-1] ^= 1


def corrupted(ctx: Context, *, kind: str, rate: float, seed: int) -> programs.Soaked:
    """The shortest soak, in which results of one kind are corrupted on the last rank at random, at such a rate."""
    multiply, add, copy, drawn = torch.mm, dist.all_reduce, torch.Tensor.copy_, random.Random(seed)

    def flips(this: str) -> bool:
        return this == kind and ctx.rank == ctx.world_size - 1 and drawn.random() < rate

    def multiplied(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        multiply(a, b, out=out)
        if flips("products"):
            bits_of(out).view(-1)[0] ^= 1
        return out

    def added(tensor: torch.Tensor, async_op: bool = False) -> Any:
        work = add(tensor, async_op=async_op)
        return Flipped(work, tensor) if async_op and flips("sums") else work

    def copied(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        copy(self, source, non_blocking=non_blocking)
        if non_blocking and flips("copies"):
            bits_of(self)[3] ^= 1
        return self

    with (
        mock.patch.object(torch, "mm", multiplied),
        mock.patch.object(dist, "all_reduce", added),
        mock.patch.object(torch.Tensor, "copy_", copied),
    ):
        return programs.soak(ctx, seconds=0.0, width=16, numel=64)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", programs.SLOTS)
def test_a_fault_as_rare_as_is_claimed_is_seen_with_95_percent(ranks: Ranks, kind: str) -> None:
    """At a rate the claim allows, 38 of 40 soaks are expected to see a fault; 32 is four standard deviations less."""

    def trials(ctx: Context, count: int) -> tuple[int, int, int]:
        whole = [corrupted(ctx, kind=kind, rate=0.0, seed=0)]
        rate = reference.seen_rate(whole[0].compared[kind])
        found = [corrupted(ctx, kind=kind, rate=rate, seed=seed) for seed in range(count)]
        others = sum(wrong for one in found for other, wrong in one.wrong.items() if other != kind)
        return sum(one.wrong[kind] > 0 for one in found), others, sum(whole[0].wrong.values())

    (seen_first, *_), (seen, others, healthy) = ranks.run(trials, 40)
    assert healthy == others == 0
    assert seen >= 32, f"{kind}: {seen} of 40 soaks saw a fault of the claimed rate"
    assert seen < 40, "the faults are not as rare as is claimed"
    assert seen_first == 0, "who is not corrupted is not accused"


def counted(ctx: Context) -> tuple[dict[str, int], dict[str, int]]:
    """What the shortest soak says that it compared, and how many of each kind it began."""
    begun = dict.fromkeys(programs.SLOTS, 0)
    multiply, add, copy = torch.mm, dist.all_reduce, torch.Tensor.copy_

    def multiplied(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        begun["products"] += 1
        return multiply(a, b, out=out)

    def added(tensor: torch.Tensor, async_op: bool = False) -> Any:
        begun["sums"] += async_op  # not the word that time is over
        return add(tensor, async_op=async_op)

    def copied(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        begun["copies"] += non_blocking
        return copy(self, source, non_blocking=non_blocking)

    with (
        mock.patch.object(torch, "mm", multiplied),
        mock.patch.object(dist, "all_reduce", added),
        mock.patch.object(torch.Tensor, "copy_", copied),
    ):
        soaked = programs.soak(ctx, seconds=0.0, width=16, numel=64)
    return dict(soaked.compared), {**begun, "copies": begun["copies"] // 2}  # there and back


@pytest.mark.ranks(2)
def test_a_soak_counts_what_it_compares(ranks: Ranks) -> None:
    for compared, begun in ranks.run(counted):
        assert compared == begun
        assert all(compared.values())


def test_who_is_corrupted_is_named() -> None:
    healthy = programs.Soaked({"products": 40, "sums": 20}, {"products": 0, "sums": 0})
    bad = programs.Soaked({"products": 40, "sums": 20}, {"products": 0, "sums": 3})
    assert list(reference.corruptions([healthy, bad])) == ["rank 1: 3 of 20 sums are wrong"]
    empty = programs.Soaked({"products": 0, "sums": 20}, {"products": 0, "sums": 0})
    assert list(reference.corruptions([empty, healthy])) == ["rank 0: it compared no products"]


def test_the_rate_that_is_seen_leaves_one_chance_in_twenty() -> None:
    for compared in (10, 3000, 10**7):
        rate = reference.seen_rate(compared)
        assert (1 - rate) ** compared == pytest.approx(0.05)
