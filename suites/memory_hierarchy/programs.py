"""Steps that read, write and copy one tier of memory, at any size; each rank uses its own GPU.

A program prepares buffers for the largest size. Its function of a size zeroes the destination and returns the step.
That returns what it wrote. Values are whole numbers that differ by place and rank: a copy from elsewhere is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from pytest_gpuperf import Context
from suites.shared.step import Step, StepOf

DTYPE = torch.float32
PERIOD = 7
"""The period of the values, whole numbers from -3 to 3: odd, so no block of a power of two repeats the last."""
OWN = {"read": 1, "written": 1, "copied": 2, "triad": 3}
"""Tiers within the GPU, and how many bytes cross its memory's bus for each byte of the size."""
TRIAD_FACTOR = 3.0
WRITTEN = 5.0


def values(count: int, *, rank: int, device: torch.device | str = "cpu", shift: int = 0) -> torch.Tensor:
    """What so many elements of a rank's source hold; sums of any part of them are exact in float32."""
    places = torch.arange(rank + shift, rank + shift + count, dtype=torch.int32, device=device)
    return places.remainder_(PERIOD).sub_(PERIOD // 2).to(DTYPE)


def copied(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """The GPU's memory to itself: each byte is read once and written once."""
    return _copies(*_buffers(ctx, sizes, ctx.device, ctx.device))


def read(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """The sum of all elements."""
    source, total = values(_count(sizes), rank=ctx.rank, device=ctx.device), torch.zeros((), device=ctx.device)

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        part = source[: nbytes // DTYPE.itemsize]
        return lambda: torch.sum(part, dim=0, out=total)

    return step_of


def written(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """One value everywhere."""
    destination = torch.empty(_count(sizes), dtype=DTYPE, device=ctx.device)

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        part = destination[: nbytes // DTYPE.itemsize].zero_()
        return lambda: part.fill_(WRITTEN)

    return step_of


def triad(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """STREAM's triad (J. McCalpin, 1995), a = b + 3 c: two arrays of the size are read and one is written."""
    b, c = (values(_count(sizes), rank=ctx.rank, device=ctx.device, shift=shift) for shift in (0, 1))
    a = torch.empty_like(b)

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        of_a, of_b, of_c = (array[: nbytes // DTYPE.itemsize] for array in (a.zero_(), b, c))
        return lambda: torch.add(of_b, of_c, alpha=TRIAD_FACTOR, out=of_a)

    return step_of


def to_gpu(ctx: Context, *, sizes: Sequence[int], pinned: bool = True) -> StepOf:
    """The host's memory to the GPU's, over PCIe."""
    return _copies(*_buffers(ctx, sizes, "cpu", ctx.device, pinned=pinned))


def from_gpu(ctx: Context, *, sizes: Sequence[int], pinned: bool = True) -> StepOf:
    """The GPU's memory to the host's."""
    return _copies(*_buffers(ctx, sizes, ctx.device, "cpu", pinned=pinned))


def both_ways(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """Pinned memory to the GPU and back at the same time, on two streams; returns both destinations as one tensor."""
    down_from, down_to = _buffers(ctx, sizes, "cpu", ctx.device, pinned=True)
    up_from, up_to = _buffers(ctx, sizes, ctx.device, "cpu", pinned=True)
    side = torch.cuda.Stream() if ctx.device.type == "cuda" else None

    def step_of(nbytes: int) -> Step[tuple[torch.Tensor, torch.Tensor]]:
        count = nbytes // DTYPE.itemsize
        down_to.zero_()
        up_to.zero_()

        def step() -> tuple[torch.Tensor, torch.Tensor]:
            if side is None:
                up_to[:count].copy_(up_from[:count])
            else:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    up_to[:count].copy_(up_from[:count], non_blocking=True)
            down_to[:count].copy_(down_from[:count], non_blocking=True)
            if side is not None:
                torch.cuda.current_stream().wait_stream(side)
            return down_to[:count], up_to[:count]

        return step

    return step_of


def to_peer(ctx: Context, *, sizes: Sequence[int]) -> StepOf:
    """The GPU's memory to that of the next rank's GPU; all ranks write at once."""
    following = (ctx.rank + 1) % ctx.world_size
    peer = torch.device("cuda", following) if ctx.device.type == "cuda" else ctx.device
    return _copies(*_buffers(ctx, sizes, ctx.device, peer))


def host_copies(ctx: Context, *, nbytes: int, samples: int) -> tuple[list[float], torch.Tensor]:
    """Seconds of copies within the host's memory by the rank's threads, on the host's clock, and what arrived."""
    source = values(nbytes // DTYPE.itemsize, rank=ctx.rank)
    destination = torch.zeros_like(source)
    seconds = []
    for _ in range(samples + 1):
        start = time.perf_counter()
        destination.copy_(source)
        seconds.append(time.perf_counter() - start)
    return seconds[1:], destination  # the first one asks the system for the pages


def _buffers(
    ctx: Context,
    sizes: Sequence[int],
    from_: torch.device | str,
    to: torch.device | str,
    *,
    pinned: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    source = values(_count(sizes), rank=ctx.rank, device=from_)
    destination = torch.zeros(_count(sizes), dtype=DTYPE, device=to)
    if pinned and ctx.device.type == "cuda":
        source, destination = (
            tensor.pin_memory() if tensor.device.type == "cpu" else tensor for tensor in (source, destination)
        )
    return source, destination


def _copies(source: torch.Tensor, destination: torch.Tensor) -> StepOf:
    def step_of(nbytes: int) -> Step[torch.Tensor]:
        here, there = (tensor[: nbytes // DTYPE.itemsize] for tensor in (source, destination.zero_()))
        return lambda: there.copy_(here, non_blocking=True)

    return step_of


def _count(sizes: Sequence[int]) -> int:
    return sizes[-1] // DTYPE.itemsize
