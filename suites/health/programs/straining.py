"""A load of matrix products and collectives whose every result is compared, bit by bit, with the first one."""

from __future__ import annotations

import time
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
    """The digest of the first product: all ranks multiply the same matrices."""
    seconds: tuple[float, ...]
    """The time that each batch of products took, on the rank's device."""


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
