"""Whole numbers to start from: sums and products of them are exact, whatever the order of the additions."""

from __future__ import annotations

import torch

from pytest_gpuperf.strategies import whole_numbers as integers

__all__ = ["integers", "rank_input", "rank_inputs"]


def rank_input(rank: int, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """What a rank starts with, on the CPU; it differs by rank, so that a program that sends nothing cannot pass."""
    return integers(shape, dtype, seed=seed * 64 + rank)


def rank_inputs(degree: int, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """What each of so many ranks starts with."""
    return [rank_input(rank, shape=shape, dtype=dtype, seed=seed) for rank in range(degree)]
