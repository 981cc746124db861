"""A load of products and collectives, and a soak with copies beside them: the bits of all results are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.bits import bits_of, digest

_BEFORE_A_LOOK = 8
"""Products between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Strain:
    """What a rank has to tell of its load."""

    products: int
    wrong_products: int
    """Those that differed from the first one in any bit."""
    wrong_sums: int
    """Collectives that did."""
    digest: int
    """Of the first product: all ranks multiply the same matrices."""
    seconds: tuple[float, ...]
    """Of each batch of products, on the rank's device."""


def load(ctx: Context, *, width: int, dtype: torch.dtype, seconds: float) -> Strain:
    """Multiplies the same matrices on every rank and sums the product over all ranks, for so long.

    Args:
        ctx: the rank.
        width: of the square matrices.
        dtype: of the matrices and of the sum; the addends of a sum are whole numbers.
        seconds: how long; rank 0 says when it is over.
    """
    a, b = (matrix(width, dtype, seed).to(ctx.device) for seed in (1, 2))
    product, first = torch.empty_like(a), torch.mm(a, b)
    addends = (matrix(width, dtype, 3) + ctx.rank).to(ctx.device)
    total, summed = torch.empty_like(addends), expected_sum(ctx.world_size, width, dtype).to(ctx.device)
    wrong = torch.zeros(2, dtype=torch.int64, device=ctx.device)
    over = torch.zeros(1, device=ctx.device)
    taken, ends = [], time.monotonic() + seconds
    while not over.item():
        begun = _now(ctx)
        for _ in range(_BEFORE_A_LOOK):
            torch.mm(a, b, out=product)
            wrong[0] += (bits_of(product) != bits_of(first)).any()
        taken.append(_seconds(begun, _now(ctx)))
        total.copy_(addends)
        dist.all_reduce(total)
        wrong[1] += (bits_of(total) != bits_of(summed)).any()
        over.fill_(ctx.rank == 0 and time.monotonic() > ends)
        dist.all_reduce(over)
    wrong_products, wrong_sums = wrong.tolist()
    return Strain(len(taken) * _BEFORE_A_LOOK, wrong_products, wrong_sums, digest(first), tuple(taken))


@dataclass(frozen=True, slots=True)
class Soaked:
    """What a rank computed in a soak, by kind: products, sums and copies."""

    compared: Mapping[str, int]
    """Results that were compared."""
    wrong: Mapping[str, int]
    """Those of them that differed in any bit from what they must be."""


SOAKED = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
SLOTS = {"products": 4, "sums": 32, "copies": 8}
"""Results of each kind between two comparisons; of products for each dtype."""
_ROWS = 8
"""Rows of a product that the host computes, too: what all others are compared with is not the GPU's word alone."""


def soak(ctx: Context, *, seconds: float, width: int, numel: int) -> Soaked:
    """Multiplies, sums over all ranks and copies over PCIe, all at the same time, and compares every result.

    Operands are whole numbers, so each result is exact in every order of additions, and must be right to the bit.

    Args:
        ctx: the rank.
        seconds: how long; rank 0 says when it is over.
        width: of the square matrices.
        numel: of a sum, and of a copy.
    """
    multiply, products, exact = _products(ctx, width)
    addends = (matrix(64, torch.float32, 3).flatten().repeat(numel // 4096 + 1)[:numel] + ctx.rank).to(ctx.device)
    sums = torch.empty(SLOTS["sums"], numel, device=ctx.device)
    summed = ctx.world_size * (addends - ctx.rank) + sum(range(ctx.world_size))
    copies = torch.empty(SLOTS["copies"], numel, device=ctx.device)
    staged = torch.empty(SLOTS["copies"], numel, pin_memory=ctx.device.type == "cuda")
    wrong = torch.zeros(3, dtype=torch.int64, device=ctx.device)
    over, turns, ends = torch.zeros(1, device=ctx.device), 0, time.monotonic() + seconds
    while not over.item():
        for _ in range(_BEFORE_A_LOOK):
            for results in (*products, copies):
                results.zero_()  # what was there must not pass for a result
            sums.copy_(addends.expand_as(sums))
            works = [dist.all_reduce(one, async_op=True) for one in sums]
            with _beside(ctx):
                for there, back in zip(staged, copies, strict=True):
                    there.copy_(addends, non_blocking=True)
                    back.copy_(there, non_blocking=True)
            multiply()
            for work in works:
                assert work is not None
                work.wait()
            if ctx.device.type == "cuda":
                torch.cuda.synchronize()
            for results, right in zip(products, exact, strict=True):
                wrong[0] += _differing(results, right)
            wrong[1] += _differing(sums, summed)
            wrong[2] += _differing(copies, addends)
            turns += 1
        over.fill_(ctx.rank == 0 and time.monotonic() > ends)
        dist.all_reduce(over)
    done = {"products": turns * len(products) * SLOTS["products"]}
    done |= {kind: turns * SLOTS[kind] for kind in ("sums", "copies")}
    return Soaked(done, dict(zip(done, wrong.tolist(), strict=True)))


def _products(ctx: Context, width: int) -> tuple[Callable[[], None], list[torch.Tensor], list[torch.Tensor]]:
    """What multiplies in every dtype, where the results go, and what they must be."""
    pairs = [[matrix(width, dtype, seed).to(ctx.device) for seed in (1, 2)] for dtype in SOAKED]
    results = [torch.empty(SLOTS["products"], width, width, dtype=dtype, device=ctx.device) for dtype in SOAKED]
    whole = matrix(width, torch.float64, 1), matrix(width, torch.float64, 2)
    on_host = whole[0][:_ROWS] @ whole[1]
    product = whole[0].to(ctx.device) @ whole[1].to(ctx.device)
    assert torch.equal(product[:_ROWS].cpu(), on_host), f"rank {ctx.rank}: the GPU's product of whole numbers is wrong"

    def multiply() -> None:
        for (a, b), slots in zip(pairs, results, strict=True):
            for slot in slots:
                torch.mm(a, b, out=slot)

    return multiply, results, [product.to(dtype) for dtype in SOAKED]


@contextmanager
def _beside(ctx: Context) -> Iterator[None]:
    """What is launched meanwhile runs beside the stream of the products, after all that was launched before."""
    if ctx.device.type != "cuda":
        yield
        return
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield


def _differing(results: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """How many of the results along the first dimension differ in any bit."""
    return (bits_of(results) != bits_of(right)).flatten(1).any(1).sum()


def matrix(width: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Whole numbers, of which every dtype holds the sums over 16 ranks; made of two vectors, which is fast on hosts."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randint(1, 2**15, (width,), generator=generator, dtype=torch.int32) for _ in range(2))
    mixed = rows[:, None] * columns  # 30 bits; the lowest ones know too little of both
    return mixed.bitwise_right_shift_(7).remainder_(15).sub_(7).to(dtype)


def expected_sum(world_size: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """What the collective must give: each rank adds its number to the same matrix."""
    return (world_size * matrix(width, torch.float64, 3) + sum(range(world_size))).to(dtype)


def _now(ctx: Context) -> torch.cuda.Event | float:
    if ctx.device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds(start: torch.cuda.Event | float, end: torch.cuda.Event | float) -> float:
    if isinstance(start, float) or isinstance(end, float):
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3
