"""Pages of a cache that go to the next rank: written where they belong, or gathered, sent by NCCL and scattered."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.bits import fill_with_bits
from suites.shared.step import Step
from suites.shared.symmetric import Allocate, allocate

DTYPE = torch.int32


def places(pages: int, sent: int) -> torch.Tensor:
    """Which pages go, none beside the one before: multiples of what is coprime to their number."""
    step = next(step for step in range(pages // 2 + 1, 2 * pages) if math.gcd(step, pages) == 1)
    return torch.arange(sent) * step % pages


def by_nccl(ctx: Context, *, pages: int, sent: int, page_bytes: int) -> Step[torch.Tensor]:
    """One message of all pages: gathered into one tensor, sent, and scattered to their places."""
    cache = _cache(ctx, pages, page_bytes)
    arrived = torch.zeros_like(cache)
    index = places(pages, sent).to(ctx.device)
    outgoing, incoming = (torch.empty(sent, cache.shape[1], dtype=DTYPE, device=ctx.device) for _ in range(2))
    following, before = (ctx.rank + 1) % ctx.world_size, (ctx.rank - 1) % ctx.world_size

    def step() -> torch.Tensor:
        torch.index_select(cache, 0, index, out=outgoing)
        operations = [dist.P2POp(dist.isend, outgoing, following), dist.P2POp(dist.irecv, incoming, before)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return arrived.index_copy_(0, index, incoming)

    return step


def by_puts(
    ctx: Context, *, pages: int, sent: int, page_bytes: int, allocate: Allocate = allocate
) -> Step[torch.Tensor]:
    """One kernel writes all pages into the next rank's cache; a barrier tells that they are there."""
    cache, index = _cache(ctx, pages, page_bytes), places(pages, sent).to(ctx.device)
    memory = allocate(ctx, cache.nbytes)
    there, here = (
        memory.buffer(rank, tuple(cache.shape), DTYPE) for rank in ((ctx.rank + 1) % ctx.world_size, ctx.rank)
    )
    here.zero_()

    def step() -> torch.Tensor:
        memory.barrier()  # what came before has been read
        there.index_copy_(0, index, cache[index])
        memory.barrier()
        return here

    return step


def by_gets(
    ctx: Context, *, pages: int, sent: int, page_bytes: int, allocate: Allocate = allocate
) -> Step[torch.Tensor]:
    """One kernel reads the pages from the cache of the rank before."""
    memory = allocate(ctx, pages * page_bytes)
    shape = (pages, page_bytes // DTYPE.itemsize)
    memory.buffer(ctx.rank, shape, DTYPE).copy_(_cache(ctx, pages, page_bytes))
    there = memory.buffer((ctx.rank - 1) % ctx.world_size, shape, DTYPE)
    arrived, index = torch.zeros(shape, dtype=DTYPE, device=ctx.device), places(pages, sent).to(ctx.device)

    def step() -> torch.Tensor:
        memory.barrier()  # they are there
        arrived.index_copy_(0, index, torch.index_select(there, 0, index))
        memory.barrier()  # all have read
        return arrived

    return step


def verify(ctx: Context, arrived: torch.Tensor, steps: int, *, sent: int) -> None:
    """The pages that go are those of the rank before, the others are empty; then all are wiped."""
    pages, numel = arrived.shape
    expected = torch.zeros_like(arrived)
    before = torch.empty(pages * numel, dtype=DTYPE, device=arrived.device)
    fill_with_bits(before, stream=(ctx.rank - 1) % ctx.world_size)
    index = places(pages, sent).to(arrived.device)
    expected[index] = before.view(pages, numel)[index]
    wrong = int((arrived != expected).any(1).sum())
    assert not wrong, f"rank {ctx.rank}: {wrong} of {pages} pages are wrong"
    arrived.zero_()


def _cache(ctx: Context, pages: int, page_bytes: int) -> torch.Tensor:
    numel = page_bytes // DTYPE.itemsize
    flat = torch.empty(pages * numel, dtype=DTYPE, device=ctx.device)
    fill_with_bits(flat, stream=ctx.rank)
    return flat.view(pages, numel)
