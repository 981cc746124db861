"""One program for each collective; each program's step returns what the rank holds afterwards.

A program makes the input, or works on ``x``: whoever hands it one can fill it anew between steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.collectives.reference import FACTOR, Collective
from suites.shared.step import Step

Program = Callable[..., Callable[[], torch.Tensor | None]]


def reduce_op(op: str) -> dist.ReduceOp:
    """The reduction that torch knows by this name."""
    if op == "premul_sum":
        return dist._make_nccl_premul_sum(float(FACTOR))
    found: dist.ReduceOp = getattr(dist.ReduceOp, op.upper())
    return found


def _input(ctx: Context, collective: Collective, x: torch.Tensor | None) -> torch.Tensor:
    return collective.start(ctx.rank, ctx.device) if x is None else x


def _output(ctx: Context, collective: Collective) -> torch.Tensor:
    return torch.empty(collective.ended(ctx.rank) or 0, dtype=collective.dtype, device=ctx.device)


def all_reduce(ctx: Context, *, collective: Collective, x: torch.Tensor | None = None) -> Step[torch.Tensor]:
    x, op = _input(ctx, collective, x), reduce_op(collective.op)

    def step() -> torch.Tensor:
        dist.all_reduce(x, op)
        return x

    return step


def all_gather(ctx: Context, *, collective: Collective, x: torch.Tensor | None = None) -> Step[torch.Tensor]:
    x, out = _input(ctx, collective, x), _output(ctx, collective)

    def step() -> torch.Tensor:
        dist.all_gather_into_tensor(out, x)
        return out

    return step


def reduce_scatter(ctx: Context, *, collective: Collective, x: torch.Tensor | None = None) -> Step[torch.Tensor]:
    x, out, op = _input(ctx, collective, x), _output(ctx, collective), reduce_op(collective.op)

    def step() -> torch.Tensor:
        dist.reduce_scatter_tensor(out, x, op)
        return out

    return step


def reduce_scatter_then_all_gather(
    ctx: Context, *, collective: Collective, x: torch.Tensor | None = None
) -> Step[torch.Tensor]:
    """An all_reduce in its two halves."""
    x, out, op = _input(ctx, collective, x), _output(ctx, collective), reduce_op(collective.op)
    part = torch.empty(collective.numel, dtype=collective.dtype, device=ctx.device)

    def step() -> torch.Tensor:
        dist.reduce_scatter_tensor(part, x, op)
        dist.all_gather_into_tensor(out, part)
        return out

    return step


def broadcast(ctx: Context, *, collective: Collective, x: torch.Tensor | None = None) -> Step[torch.Tensor]:
    x, root = _input(ctx, collective, x), collective.root

    def step() -> torch.Tensor:
        dist.broadcast(x, src=root)
        return x

    return step


def reduce(ctx: Context, *, collective: Collective, x: torch.Tensor | None = None) -> Step[torch.Tensor]:
    """Only the root's tensor has a defined value afterwards."""
    x, root, op = _input(ctx, collective, x), collective.root, reduce_op(collective.op)

    def step() -> torch.Tensor:
        dist.reduce(x, dst=root, op=op)
        return x

    return step


def gather(ctx: Context, *, collective: Collective, x: torch.Tensor | None = None) -> Callable[[], torch.Tensor | None]:
    """The root's step returns all inputs, stacked; the others' None."""
    x, root = _input(ctx, collective, x), collective.root
    parts = [torch.empty_like(x) for _ in range(ctx.world_size)] if ctx.rank == root else None

    def step() -> torch.Tensor | None:
        dist.gather(x, parts, dst=root)
        return None if parts is None else torch.stack(parts)

    return step


def scatter(ctx: Context, *, collective: Collective, x: torch.Tensor | None = None) -> Step[torch.Tensor]:
    """The root's input has a share for each rank; the others have none."""
    x, out, root = _input(ctx, collective, x), _output(ctx, collective), collective.root
    parts = list(x.chunk(ctx.world_size)) if ctx.rank == root else None

    def step() -> torch.Tensor:
        dist.scatter(out, parts, src=root)
        return out

    return step


def all_to_all(ctx: Context, *, collective: Collective, x: torch.Tensor | None = None) -> Step[torch.Tensor]:
    """Each rank sends the r-th share of its input to rank r."""
    x, out = _input(ctx, collective, x), _output(ctx, collective)

    def step() -> torch.Tensor:
        dist.all_to_all_single(out, x)
        return out

    return step


def all_to_all_uneven(ctx: Context, *, collective: Collective, x: torch.Tensor | None = None) -> Step[torch.Tensor]:
    """Rank i sends ``collective.splits[i][j]`` elements to rank j."""
    x, out = _input(ctx, collective, x), _output(ctx, collective)
    sent = list(collective.splits[ctx.rank])
    received = [row[ctx.rank] for row in collective.splits]

    def step() -> torch.Tensor:
        dist.all_to_all_single(out, x, output_split_sizes=received, input_split_sizes=sent)
        return out

    return step


def send_recv(ctx: Context, *, collective: Collective, x: torch.Tensor | None = None) -> Step[torch.Tensor]:
    """A ring: each rank sends to the next and receives from the one before, at the same time."""
    x, out = _input(ctx, collective, x), _output(ctx, collective)
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
