"""Data that suites share: inputs that differ by rank, and integer-valued ones whose results are exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from pytest_gpuperf import Context

BLOCK = 1 << 16  # drawn values; larger tensors repeat them, since drawing 1 GiB on a CPU takes seconds


def integers(shape: tuple[int, ...], dtype: torch.dtype, *, seed: int, low: int = -15, high: int = 15) -> torch.Tensor:
    """Whole numbers between ``low`` and ``high`` in any dtype, on the CPU, the same for the same seed.

    15 is small enough for the sum over 8 ranks to be exact in bfloat16, which holds integers up to 256.
    """
    numel = math.prod(shape)
    generator = torch.Generator().manual_seed(seed)
    block = torch.randint(low, high + 1, (min(numel, BLOCK),), generator=generator)
    repeats = math.ceil(numel / BLOCK) if numel else 1
    return block.to(dtype).repeat(repeats)[:numel].reshape(shape)


def once(ctx: Context, program: Callable[..., Callable[[], Any]], **kwargs: Any) -> Any:
    """Prepares a timed program and calls its step a single time: what is timed is what is checked."""
    return program(ctx, **kwargs)()
