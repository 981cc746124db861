"""An all_reduce under matrix products, in several ways; and the parts of such a step.

R ranks, n products of S x S matrices, one after the other; meanwhile the sum of the ranks' vectors. Neither needs the
other, so what one costs the other is what they share: multiprocessors, memory, power.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.peer_memory import Allocate, PeerMemory, allocate, prepare_workspace
from suites.shared.places import addends
from suites.shared.step import Step

SUMMED = torch.float32


@dataclass(frozen=True, slots=True)
class Summing:
    """One way to add up the ranks' vectors."""

    mine: torch.Tensor
    """The rank's own, which stays as it is; whoever writes to it changes what the next step adds up."""
    summed: Callable[[], torch.Tensor]
    """Adds up on the current stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a rank computes and sends in a step."""

    products: int
    size: int
    """Rows and columns of each matrix."""
    numel: int
    """The number of elements of the vector."""
    dtype: torch.dtype
    """The dtype of the matrices; the vector's is float32."""

    @property
    def flop(self) -> float:
        """Floating-point operations of a step on a rank."""
        return 2.0 * self.products * self.size**3


def vector(ctx: Context, load: Load, turn: int = 0) -> torch.Tensor:
    """Whole numbers that need every bit of their dtype, and whose sum is exact; others at each turn."""
    places = {"rank": ctx.rank, "ranks": ctx.world_size, "start": turn * load.numel}
    return addends(load.numel, dtype=SUMMED, device=ctx.device, **places)


def by_nccl(ctx: Context, *, load: Load, most_ctas: int | None = None) -> Summing:
    """all_reduce on a group of its own, which takes at most so many multiprocessors; gloo's on CPUs."""
    options: Mapping[str, Any] = {}
    if most_ctas is not None and ctx.device.type == "cuda":
        nccl = dist.ProcessGroupNCCL.Options()
        nccl.config.max_ctas = most_ctas
        options = {"pg_options": nccl}
    group = dist.new_group(range(ctx.world_size), **options)
    mine = vector(ctx, load)
    out = torch.empty_like(mine)

    def summed() -> torch.Tensor:
        out.copy_(mine)
        dist.all_reduce(out, group=group)
        return out

    return Summing(mine, summed)


def by_copies(ctx: Context, *, load: Load, allocate: Allocate = allocate) -> Summing:
    """Copy engines move everything: each rank reads its part of all vectors, adds them up, and reads the others' sums.

    Raises:
        ValueError: The ranks do not divide the vector.
    """
    if load.numel % ctx.world_size:
        raise ValueError(f"{load.numel} elements make no {ctx.world_size} equal parts: choose a multiple")
    part = load.numel // ctx.world_size
    memory = allocate(ctx, 2 * load.numel * SUMMED.itemsize)
    # First the vector, then the sums; each rank has summed the part of its own number.
    mine = memory.buffer(ctx.rank, (load.numel,), SUMMED).copy_(vector(ctx, load))
    # Each rank begins with the one after it: all at once would read from the same.
    peers = [(ctx.rank + away) % ctx.world_size for away in range(1, ctx.world_size)]
    sources = [memory.buffer(peer, (part,), SUMMED, ctx.rank * part) for peer in peers]
    sums = [memory.buffer(peer, (part,), SUMMED, load.numel + peer * part) for peer in peers]
    own = memory.buffer(ctx.rank, (part,), SUMMED, ctx.rank * part)
    own_sum = memory.buffer(ctx.rank, (part,), SUMMED, load.numel + ctx.rank * part)
    landed = torch.empty(len(peers), part, dtype=SUMMED, device=ctx.device)
    out = torch.empty(load.numel, dtype=SUMMED, device=ctx.device)
    parts = out.view(ctx.world_size, part)

    def summed() -> torch.Tensor:
        memory.barrier()  # all vectors are there, and the last sums have been read
        for here, there in zip(landed, sources, strict=True):
            here.copy_(there, non_blocking=True)
        torch.sum(landed, 0, out=own_sum).add_(own)
        memory.barrier()  # all sums are there
        parts[ctx.rank].copy_(own_sum)
        for peer, there in zip(peers, sums, strict=True):
            parts[peer].copy_(there, non_blocking=True)
        return out

    return Summing(mine, summed)


def by_low_contention(ctx: Context, *, load: Load) -> Summing:
    """Symmetric memory's collectives that leave the multiprocessors to others: reduce-scatter, then all-gather."""
    for operation in ("_low_contention_reduce_scatter", "_low_contention_all_gather"):
        if not hasattr(torch.ops.symm_mem, operation):
            pytest.skip(f"torch {torch.__version__} has no torch.ops.symm_mem.{operation}")
    name = ctx.group.group_name
    memory = PeerMemory(ctx, load.numel * SUMMED.itemsize)
    mine = memory.buffer(ctx.rank, (load.numel,), SUMMED).copy_(vector(ctx, load))
    prepare_workspace(ctx, mine.nbytes)
    ops = torch.ops.symm_mem

    def summed() -> torch.Tensor:
        assert memory.tensor.is_cuda  # kept for as long as it is mapped
        part = torch.ops._c10d_functional.wait_tensor(ops._low_contention_reduce_scatter(mine, "sum", name))
        gathered: torch.Tensor = torch.ops._c10d_functional.wait_tensor(ops._low_contention_all_gather(part, name))
        return gathered

    return Summing(mine, summed)


WAYS: Mapping[str, Callable[..., Summing]] = {
    "nccl": by_nccl,
    "nccl_4_ctas": lambda ctx, load: by_nccl(ctx, load=load, most_ctas=4),
    "copy_engines": by_copies,
    "low_contention": by_low_contention,
}
ON_GPUS = ("low_contention",)
"""Ways that CPUs do not have."""


def products(ctx: Context, *, load: Load, way: str = "") -> Step[list[torch.Tensor]]:
    """The products alone; the way does not matter."""
    multiplied = multiply(ctx, load)
    return lambda: [multiplied()]


def sum_alone(ctx: Context, *, load: Load, way: str) -> Step[list[torch.Tensor]]:
    """The sum alone."""
    way_of = WAYS[way](ctx, load=load)
    return lambda: [way_of.summed()]


def together(ctx: Context, *, load: Load, way: str) -> Step[list[torch.Tensor]]:
    """Both at once, the sum on a stream of its own; returns the last product and the sum."""
    multiplied, summed = multiply(ctx, load), WAYS[way](ctx, load=load).summed
    if ctx.device.type == "cpu":
        return lambda: [multiplied(), summed()]
    # Of high priority: its few blocks need not wait until a product has none left to start.
    beside = torch.cuda.Stream(ctx.device, priority=-1)

    def step() -> list[torch.Tensor]:
        current = torch.cuda.current_stream()
        beside.wait_stream(current)
        with torch.cuda.stream(beside):
            total = summed()
        product = multiplied()
        current.wait_stream(beside)
        total.record_stream(current)
        return [product, total]

    return step


def multiply(ctx: Context, load: Load) -> Callable[[], torch.Tensor]:
    """The products; a chain of the same two matrices, whose numbers stay near 1."""
    generator = torch.Generator(ctx.device).manual_seed(2)
    a, b = (
        torch.randn(load.size, load.size, generator=generator, device=ctx.device).mul_(load.size**-0.25).to(load.dtype)
        for _ in range(2)
    )
    out = torch.empty_like(a)

    def multiplied() -> torch.Tensor:
        for _ in range(load.products):
            torch.mm(a, b, out=out)
        return out

    return multiplied
