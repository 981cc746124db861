"""What the steps must leave, made of the places of the values alone; chunk by chunk, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_gpuperf import Context, MiB
from suites.memory_hierarchy.programs import DTYPE, PERIOD, TRIAD_FACTOR, WRITTEN
from suites.shared.comparison import assert_close

CHUNK = 16 * MiB // DTYPE.itemsize
Verify = Callable[[Context, Any, int, int], None]
"""Takes the rank's context, what a step returned, the number of steps, and the size in bytes."""


def value_at(place: torch.Tensor) -> torch.Tensor:
    """The value at each place: its rest by 7, less 3."""
    return (place % PERIOD - PERIOD // 2).to(DTYPE)


def copied(ctx: Context, output: torch.Tensor, steps: int, nbytes: int) -> None:
    """The destination holds the source."""
    _assert_places(ctx, output, nbytes, value_at)


def read(ctx: Context, output: torch.Tensor, steps: int, nbytes: int) -> None:
    """A whole period sums to nothing: what is left is the sum of the rest, which begins at the rank."""
    rest = nbytes // DTYPE.itemsize % PERIOD
    expected = value_at(torch.arange(ctx.rank, ctx.rank + rest)).sum()
    assert_close(output.cpu(), expected, f"rank {ctx.rank}, sum of {nbytes} B")


def written(ctx: Context, output: torch.Tensor, steps: int, nbytes: int) -> None:
    """The value is everywhere."""
    _assert_places(ctx, output, nbytes, lambda place: torch.full_like(place, WRITTEN, dtype=DTYPE))


def triad(ctx: Context, output: torch.Tensor, steps: int, nbytes: int) -> None:
    """The second array begins one place later."""
    _assert_places(ctx, output, nbytes, lambda place: value_at(place) + TRIAD_FACTOR * value_at(place + 1))


def both_ways(ctx: Context, output: tuple[torch.Tensor, torch.Tensor], steps: int, nbytes: int) -> None:
    """Both destinations hold the source."""
    for one in output:
        copied(ctx, one, steps, nbytes)


def to_peer(ctx: Context, output: torch.Tensor, steps: int, nbytes: int) -> None:
    """The bytes are on the next rank's GPU."""
    if ctx.device.type == "cuda":
        following = (ctx.rank + 1) % ctx.world_size
        assert output.get_device() == following, f"rank {ctx.rank}: the copy is on {output.device}, not {following}"
    copied(ctx, output, steps, nbytes)


def _assert_places(
    ctx: Context, output: torch.Tensor, nbytes: int, expected: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    if ctx.device.type == "cuda":
        torch.cuda.synchronize()  # nothing else makes the host wait for what is copied to its memory
    count = nbytes // DTYPE.itemsize
    assert output.shape == (count,), f"rank {ctx.rank}: {tuple(output.shape)} elements, not {count}"
    for begin in range(0, count, CHUNK):
        part = output[begin : begin + CHUNK]
        place = torch.arange(begin, begin + part.numel(), dtype=torch.int32, device=part.device) + ctx.rank
        assert_close(part, expected(place), f"rank {ctx.rank}, from element {begin} on")
