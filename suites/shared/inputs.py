"""Whole numbers to start from, exact in any order of additions, and what a layer is given in one step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from pytest_gpuperf.strategies import whole_numbers as integers
from suites.shared.step import Tensors

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


@dataclass(frozen=True, slots=True)
class Given:
    """What the whole layer is given in one step."""

    parameters: Tensors
    x: torch.Tensor
    grad: torch.Tensor
    """The gradient of the output."""


@torch.no_grad()
def overwrite(module: nn.Module, parameters: Tensors) -> None:
    """Gives a split module other values in place, as an optimizer would: exactly, and without messages."""
    for name, value in module.named_parameters():
        assert isinstance(value, DTensor)
        new = parameters[name].to(value.device)
        value.copy_(distribute_tensor(new, value.device_mesh, value.placements, src_data_rank=None))
