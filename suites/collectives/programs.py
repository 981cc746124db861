"""One program for each collective. R ranks; each program's step returns what the rank holds afterwards.

Inputs differ by rank, so that a collective that does nothing cannot pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.inputs import integers, rank_input
from suites.shared.step import Step

OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


def reduction_input(
    rank: int, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int, op: str = "sum", world_size: int = 1
) -> torch.Tensor:
    """What a rank starts with, on the CPU, exact under ``op`` whatever the order of the reduction."""
    match op:
        case "product":  # of 8 factors, at most 2**8, exact in bfloat16
            values = integers(shape, dtype, seed=seed * 64 + rank, low=1, high=2)
            return values * (1 if rank % 2 else -1)
        case "avg":  # multiples of the world size: each rank's share of the mean is whole
            return integers(shape, dtype, seed=seed * 64 + rank, low=-3, high=3) * world_size
        case _:
            return rank_input(rank, shape=shape, dtype=dtype, seed=seed)


def _mine(ctx: Context, shape: tuple[int, ...], dtype: torch.dtype, seed: int, op: str = "sum") -> torch.Tensor:
    world_size = ctx.world_size
    return reduction_input(ctx.rank, shape=shape, dtype=dtype, seed=seed, op=op, world_size=world_size).to(ctx.device)


def all_reduce(
    ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int, op: str = "sum"
) -> Step[torch.Tensor]:
    x = _mine(ctx, shape, dtype, seed, op)

    def step() -> torch.Tensor:
        dist.all_reduce(x, OPS[op])
        return x

    return step


def all_gather(ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Step[torch.Tensor]:
    x = _mine(ctx, shape, dtype, seed)
    out = torch.empty((ctx.world_size * shape[0], *shape[1:]), dtype=dtype, device=ctx.device)

    def step() -> torch.Tensor:
        dist.all_gather_into_tensor(out, x)
        return out

    return step


def reduce_scatter(
    ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int, op: str = "sum"
) -> Step[torch.Tensor]:
    """``shape`` is that of the output; the input has R times its first dimension."""
    x = _mine(ctx, (ctx.world_size * shape[0], *shape[1:]), dtype, seed, op)
    out = torch.empty(shape, dtype=dtype, device=ctx.device)

    def step() -> torch.Tensor:
        dist.reduce_scatter_tensor(out, x, OPS[op])
        return out

    return step


def reduce_scatter_then_all_gather(
    ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int, op: str = "sum"
) -> Step[torch.Tensor]:
    """An all_reduce in its two halves; ``shape`` is that of input and output, R divides its first dimension."""
    if shape[0] % ctx.world_size:
        raise ValueError(f"{shape[0]} rows cannot be scattered evenly over {ctx.world_size} ranks")
    x = _mine(ctx, shape, dtype, seed, op)
    part = torch.empty((shape[0] // ctx.world_size, *shape[1:]), dtype=dtype, device=ctx.device)
    out = torch.empty_like(x)

    def step() -> torch.Tensor:
        dist.reduce_scatter_tensor(part, x, OPS[op])
        dist.all_gather_into_tensor(out, part)
        return out

    return step


def broadcast(ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int, root: int) -> Step[torch.Tensor]:
    x = _mine(ctx, shape, dtype, seed)

    def step() -> torch.Tensor:
        dist.broadcast(x, src=root)
        return x

    return step


def reduce(
    ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int, root: int, op: str = "sum"
) -> Step[torch.Tensor]:
    """Only the root's tensor has a defined value afterwards."""
    x = _mine(ctx, shape, dtype, seed, op)

    def step() -> torch.Tensor:
        dist.reduce(x, dst=root, op=OPS[op])
        return x

    return step


def gather(
    ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int, root: int
) -> Callable[[], torch.Tensor | None]:
    """The root's step returns all inputs, stacked; the others' None."""
    x = _mine(ctx, shape, dtype, seed)
    parts = [torch.empty_like(x) for _ in range(ctx.world_size)] if ctx.rank == root else None

    def step() -> torch.Tensor | None:
        dist.gather(x, parts, dst=root)
        return None if parts is None else torch.stack(parts)

    return step


def scatter(ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int, root: int) -> Step[torch.Tensor]:
    """The root sends rank r the input that rank r would start with elsewhere."""
    out = torch.empty(shape, dtype=dtype, device=ctx.device)
    parts = None
    if ctx.rank == root:
        parts = [rank_input(r, shape=shape, dtype=dtype, seed=seed).to(ctx.device) for r in range(ctx.world_size)]

    def step() -> torch.Tensor:
        dist.scatter(out, parts, src=root)
        return out

    return step


def all_to_all(ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Step[torch.Tensor]:
    """Each rank sends rows r * shape[0] to (r + 1) * shape[0] of its input to rank r."""
    x = _mine(ctx, (ctx.world_size * shape[0], *shape[1:]), dtype, seed)
    out = torch.empty_like(x)

    def step() -> torch.Tensor:
        dist.all_to_all_single(out, x)
        return out

    return step


def all_to_all_uneven(ctx: Context, *, splits: list[list[int]], dtype: torch.dtype, seed: int) -> Step[torch.Tensor]:
    """Rank i sends ``splits[i][j]`` elements to rank j."""
    size = ctx.world_size
    if [len(row) for row in splits] != [size] * size:
        lengths = " and ".join(str(len(row)) for row in splits)
        raise ValueError(f"splits of {size} ranks are {size} rows of {size}, got rows of {lengths}")
    sent = splits[ctx.rank]
    received = [row[ctx.rank] for row in splits]
    x = _mine(ctx, (sum(sent),), dtype, seed)
    out = torch.empty(sum(received), dtype=dtype, device=ctx.device)

    def step() -> torch.Tensor:
        dist.all_to_all_single(out, x, output_split_sizes=received, input_split_sizes=sent)
        return out

    return step


def send_recv(ctx: Context, *, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Step[torch.Tensor]:
    """A ring: each rank sends to the next and receives from the one before, at the same time."""
    x = _mine(ctx, shape, dtype, seed)
    out = torch.empty_like(x)
    following, preceding = (ctx.rank + 1) % ctx.world_size, (ctx.rank - 1) % ctx.world_size

    def step() -> torch.Tensor:
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, following), dist.P2POp(dist.irecv, out, preceding)])
        for work in works:
            work.wait()
        return out

    return step


def barrier(ctx: Context, *, late: int, seconds: float) -> tuple[float, float]:
    """When the rank came to the barrier and when it left, on the clock that all ranks of a host share."""
    if ctx.rank == late:
        time.sleep(seconds)  # not a wait for an event: the lateness is what the test is about
    came = time.monotonic()
    dist.barrier()
    if ctx.device.type == "cuda":
        torch.cuda.synchronize()
    return came, time.monotonic()
