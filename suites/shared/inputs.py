"""Whole numbers to start from: sums and products of them are exact, whatever the order of the additions."""

from __future__ import annotations

import torch

from pytest_gpuperf.strategies import whole_numbers as integers

__all__ = ["full_width", "integers", "rank_input", "rank_inputs"]


def rank_input(rank: int, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """What a rank starts with, on the CPU; it differs by rank, so that a program that sends nothing cannot pass."""
    return integers(shape, dtype, seed=seed * 64 + rank)


def rank_inputs(degree: int, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """What each of so many ranks starts with."""
    return [rank_input(rank, shape=shape, dtype=dtype, seed=seed) for rank in range(degree)]


def full_width(shape: tuple[int, ...], dtype: torch.dtype, *, seed: int, addends: int) -> torch.Tensor:
    """Odd whole numbers, on the CPU, that need every bit that the sum of so many of them leaves them.

    So the sum has one right result, and a tensor that goes through a smaller dtype on its way does not give it. No
    block of it repeats itself: an element that lands in the wrong place is seen too.
    """
    # Of a float's, 2**24 for example: all whole numbers up to it are in float32.
    counts_to = round(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max
    half = counts_to // addends // 2
    drawn = torch.randint(-half, half, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int64)
    return (2 * drawn + 1).to(dtype)  # its magnitude is at most 2 * half - 1
