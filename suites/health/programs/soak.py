"""A soak: products, sums and copies at the same time, each result compared by its bits with what it must be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.health.programs.straining import matrix
from suites.shared.bits import bits_of

_BEFORE_A_LOOK = 8
"""Turns between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Soaked:
    """What a rank computed in a soak, by kind: products, sums and copies."""

    compared: Mapping[str, int]
    """Results that were compared."""
    wrong: Mapping[str, int]
    """Compared results that differed in any bit from what they must be."""


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
