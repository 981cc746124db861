"""Every result of the load is compared, and who is wrong or slow is named."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Health, Ranks
from suites.health import reference
from suites.health.programs import straining as programs
from suites.health.programs.straining import Strain
from suites.shared.bits import bits_of, digest
from suites.shared.delays import Moving, moved_by

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
HEALTHY = Strain(products=80, wrong_products=0, wrong_sums=0, digest=7, seconds=(1.0,) * 10)


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("dtype", DTYPES, ids=[str(dtype)[6:] for dtype in DTYPES])
def test_results_do_not_differ(ranks: Ranks, dtype: torch.dtype) -> None:
    width = 4096 if ranks.backend == "nccl" else 48
    told = list(reference.complaints(ranks.run(programs.load, width=width, dtype=dtype, seconds=0.1)))
    assert not told, "\n".join(told)


def corrupted(ctx: Context, *, product: int = 0, sum_: int = 0, seconds: float = 0.0) -> Strain:
    """The load, in which one bit flips on rank 1: in the product or in the sum of this number, from 1 on."""
    multiply, add, seen = torch.mm, dist.all_reduce, Counter[str]()

    def flipped(kind: str, number: int, result: torch.Tensor) -> None:
        seen[kind] += 1
        if ctx.rank == 1 and seen[kind] == number:
            bits_of(result).view(-1)[-1] ^= 1

    def multiplied(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        result = multiply(a, b) if out is None else multiply(a, b, out=out)
        if out is not None:
            flipped("product", product, result)
        return result

    def added(tensor: torch.Tensor) -> None:
        add(tensor)
        if tensor.numel() > 1:  # not the word that time is over
            flipped("sum", sum_, tensor)

    with mock.patch.object(torch, "mm", multiplied), mock.patch.object(dist, "all_reduce", added):
        return programs.load(ctx, width=16, dtype=torch.float32, seconds=seconds)


@pytest.mark.ranks(2)
def test_each_product_and_each_sum_is_compared(ranks: Ranks) -> None:
    for number in range(1, 9):
        strains = ranks.run(corrupted, product=number)
        assert [strain.wrong_products for strain in strains] == [0, 1], f"product {number}"
    strains = ranks.run(corrupted, sum_=1)
    assert [strain.wrong_sums for strain in strains] == [0, 1]
    assert [strain.products for strain in strains] == [8, 8]


BATCHES = 4
PAUSE = 0.004  # seconds before each product of a steady load


def in_batches(ctx: Context, load: Callable[[Context], Strain]) -> Strain:
    """A load that takes its end from a clock that each look moves by a second: it has a batch for each look."""
    with mock.patch.object(time, "monotonic", side_effect=itertools.count()):
        return load(ctx)


@pytest.mark.ranks(2)
def test_what_was_wrong_at_first_is_told_at_the_end(ranks: Ranks) -> None:
    """However many batches are right after it."""
    with_batches = partial(corrupted, product=1, sum_=1, seconds=BATCHES)
    strains = ranks.run(in_batches, with_batches)
    assert [len(strain.seconds) for strain in strains] == [BATCHES + 1] * 2
    assert [(strain.wrong_products, strain.wrong_sums) for strain in strains] == [(0, 0), (1, 1)]


def host_now(ctx: Context) -> float:
    """Return the host's time, on GPUs too."""
    return time.perf_counter()


def slowed(ctx: Context, *, slow: int) -> Strain:
    """The load, on a clock that each product moves by a second, by three on one rank, and each sum by many."""
    products = Moving(torch, "mm", lambda *_, **__: 3.0 if ctx.rank == slow else 1.0)
    sums = Moving(dist, "all_reduce", lambda *_: 1000.0)
    with mock.patch.object(programs, "_now", host_now), moved_by(products, sums):
        return programs.load(ctx, width=16, dtype=torch.float32, seconds=0.0)


@pytest.mark.ranks(2, 3, device="cpu")  # a GPU has a clock of its own
def test_a_rank_that_waits_for_a_slow_one_is_not_slow(ranks: Ranks) -> None:
    """All ranks meet in the sums: the seconds of products are a rank's own, so that the slow one alone is odd."""
    for slow in range(ranks.world_size):
        strains = ranks.run(slowed, slow=slow)
        by_rank = reference.rates(strains)
        assert by_rank == [1 / 3 if rank == slow else 1.0 for rank in range(ranks.world_size)], f"rank {slow} is slow"
        assert slow in reference.odd_ranks(by_rank), f"rank {slow} is slow, and rates are {by_rank}"


def steady(ctx: Context) -> Strain:
    """The load in which every product takes as long, for several batches."""
    multiply = torch.mm

    def multiplied(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        time.sleep(PAUSE)  # not a wait for an event: what a product takes is what the test is about
        return multiply(a, b) if out is None else multiply(a, b, out=out)

    load = partial(programs.load, width=16, dtype=torch.float32, seconds=BATCHES)
    with mock.patch.object(torch, "mm", multiplied):
        return in_batches(ctx, load)


@pytest.mark.ranks(2, device="cpu")
def test_the_seconds_of_a_batch_are_its_own(ranks: Ranks) -> None:
    started = time.monotonic()
    strains = ranks.run(steady)
    lasted = time.monotonic() - started
    for rank, strain in enumerate(strains):
        assert len(strain.seconds) == BATCHES + 1, f"rank {rank}: {len(strain.seconds)} batches"
        assert sum(strain.seconds) <= lasted, f"rank {rank}: batches of {strain.seconds} s in {lasted} s"


@pytest.mark.ranks(2)
def test_the_load_goes_on_for_as_long_as_is_asked(ranks: Ranks) -> None:
    start = time.monotonic()
    strains = ranks.run(programs.load, width=16, dtype=torch.float32, seconds=0.5)
    assert time.monotonic() - start >= 0.5
    assert len({strain.products for strain in strains}) == 1, "a rank has left before the others"


def test_products_and_sums_are_exact() -> None:
    a, b = (programs.matrix(48, torch.float64, seed) for seed in (1, 2))
    whole = programs.matrix(48, torch.bfloat16, 1) @ programs.matrix(48, torch.bfloat16, 2)
    assert torch.equal((a @ b).bfloat16(), whole)
    parts = [programs.matrix(5, torch.float64, 3) + rank for rank in range(8)]
    assert torch.equal(torch.stack(parts).sum(0).bfloat16(), programs.expected_sum(8, 5, torch.bfloat16))


def test_one_bit_changes_the_digest() -> None:
    x = programs.matrix(9, torch.float32, 1)
    for place in range(x.numel()):
        other = x.clone()
        other.view(-1)[place] = torch.nextafter(other.view(-1)[place], torch.tensor(100.0))
        assert digest(other) != digest(x)
    assert digest(x.t().contiguous()) != digest(x)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, []),
        ({"wrong_products": 1}, ["1 of 80 products differ from the first one"]),
        ({"wrong_sums": 2}, ["2 sums over all ranks are wrong"]),
        ({"digest": 8}, ["its product of the same matrices differs from the other ranks'"]),
        ({"products": 0}, ["it has multiplied nothing"]),
    ],
)
def test_who_is_wrong_is_named(change: dict[str, int], told: list[str]) -> None:
    for rank in range(3):
        strains = [HEALTHY] * 3
        strains[rank] = dataclasses.replace(HEALTHY, **change)  # type: ignore[arg-type]
        assert list(reference.complaints(strains)) == [f"rank {rank}: {text}" for text in told]


def test_who_is_slow_is_named() -> None:
    # The first half is warm-up. One batch that was fast, or held up, makes no rank slow.
    slow = dataclasses.replace(HEALTHY, seconds=(1.0,) * 5 + (1.0, 1.2, 1.2, 1.2, 9.0))
    late = dataclasses.replace(HEALTHY, seconds=(9.0,) * 5 + (1.0,) * 5)
    by_rank = reference.rates([HEALTHY, slow, late])
    assert by_rank == pytest.approx([8.0, 8 / 1.2, 8.0])
    assert reference.odd_ranks(by_rank) == {1: pytest.approx(1 - 1 / 1.2)}
    assert reference.odd_ranks([1.0, 0.97]) == {}
    assert reference.odd_ranks([1.0, 0.95]) == {1: pytest.approx(0.05)}
    assert reference.odd_ranks([1.0, 1.0, 1.2]) == {}, "one that is fast makes nobody slow"


def test_an_odd_gpu_is_told_with_its_heat_and_clock() -> None:
    def health(rank: int, kelvin: float | None, watts: float | None, sm_hertz: float | None) -> Health:
        return Health(f"GPU-{rank}", {}, kelvin, watts, sm_hertz)

    slower = "under load its GPU is 24% slower than most ranks' (at most 4%)"
    after = [
        health(0, 325.15, 640.0, 1.755e9),
        health(1, 331.15, None, 1.98e9),
        health(2, 360.15, 512.4, 1.2e9),
        health(3, 328.15, 660.0, 1.74e9),
    ]
    assert list(reference.odd_gpus([1.0, 1.0, 0.76, 1.0], after)) == [
        f"rank 2: {slower}; GPU-2 right after the load: 1.2 GHz SM clock, 87 degrees C, 512 W; the others: "
        "1.75 GHz SM clock, 55 degrees C, 650 W"
    ]
    untold = [health(rank, None, None, None) for rank in range(4)]
    assert list(reference.odd_gpus([1.0, 1.0, 1.0, 0.76], untold)) == [
        f"rank 3: {slower}; GPU-3 right after the load: not told; the others: not told"
    ]
    assert list(reference.odd_gpus([0.76, 1.0, 1.0, 1.0], [])) == [f"rank 0: {slower}"]
    assert list(reference.odd_gpus([1.0] * 4, after)) == []
