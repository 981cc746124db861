"""Collectives with matmul: one after the other, and in one.

M, K, N: the product's matrices are M x K and K x N.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.peer_memory import prepare_workspace


def matmul_inputs(ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's M/R rows of A and its own B of N/R columns, normal, scaled so that products are normal too.

    Not whole numbers, whose few set bits would draw less power than training does, and clock higher.
    """
    generator = ctx.generator()
    rows, columns = m // ctx.world_size, n // ctx.world_size
    a = torch.randn(rows, k, dtype=dtype, device=ctx.device, generator=generator)
    b = torch.randn(k, columns, dtype=dtype, device=ctx.device, generator=generator)
    return a, b / math.sqrt(k)


def all_gather_then_matmul(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """All of A times the rank's B: gathers first, then multiplies."""
    a, b = matmul_inputs(ctx, m=m, k=k, n=n, dtype=dtype)
    gathered = torch.empty(a.shape[0] * ctx.world_size, k, dtype=dtype, device=ctx.device)

    def step() -> torch.Tensor:
        dist.all_gather_into_tensor(gathered, a)
        return torch.matmul(gathered, b)

    return step


def all_gather_beside_matmul(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """All of A times the rank's B, in part during the gather.

    The rank multiplies its own shard of A while a functional collective gathers the others.
    """
    a, b = matmul_inputs(ctx, m=m, k=k, n=n, dtype=dtype)
    product = torch.empty(a.shape[0] * ctx.world_size, b.shape[1], dtype=dtype, device=ctx.device)
    first, last = ctx.rank * a.shape[0], (ctx.rank + 1) * a.shape[0]
    functional, group_name = torch.ops._c10d_functional, ctx.group.group_name

    def step() -> torch.Tensor:
        coming = functional.all_gather_into_tensor(a, ctx.world_size, group_name)
        torch.mm(a, b, out=product[first:last])
        gathered = functional.wait_tensor(coming)
        for others in (slice(0, first), slice(last, None)):
            if len(gathered[others]):
                torch.mm(gathered[others], b, out=product[others])
        return product

    return step


def fused_all_gather_matmul(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """All of A times the rank's B: multiplies each shard of A while the next one is copied from its rank's memory."""
    # Registers torch.ops.symm_mem; here, since the module is alpha, and nothing else should depend on it.
    import torch.distributed._symmetric_memory

    a, b = matmul_inputs(ctx, m=m, k=k, n=n, dtype=dtype)
    group_name = ctx.group.group_name
    # Loads the kernel that multiplies one shard. CUDA loads kernels when they are first launched and waits for the
    # device meanwhile; were that within the fused step, the device could be waiting for a peer whose host is stuck
    # in the same load: a deadlock (seen once in 12 launches on H200, torch 2.11).
    torch.mm(a, b)
    prepare_workspace(ctx, a.nbytes)

    def step() -> torch.Tensor:
        # return_A=False: the gathered A is no output, and the rank's own shard need not be copied into it.
        _, products = torch.ops.symm_mem.fused_all_gather_matmul(
            a, [b], gather_dim=0, group_name=group_name, return_A=False
        )
        product: torch.Tensor = products[0]
        return product

    return step


def products_to_sum(ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's K/R columns of A and K/R rows of B, normal, scaled so that the product is normal too."""
    generator = ctx.generator()
    a = torch.randn(m, k // ctx.world_size, dtype=dtype, device=ctx.device, generator=generator)
    b = torch.randn(k // ctx.world_size, n, dtype=dtype, device=ctx.device, generator=generator)
    return a, b / math.sqrt(k)


def matmul_then_reduce_scatter(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """M/R rows of the sum of all ranks' products: multiplies first, then sums."""
    a, b = products_to_sum(ctx, m=m, k=k, n=n, dtype=dtype)
    rows = torch.empty(m // ctx.world_size, n, dtype=dtype, device=ctx.device)

    def step() -> torch.Tensor:
        dist.reduce_scatter_tensor(rows, torch.matmul(a, b))
        return rows

    return step


def fused_matmul_reduce_scatter(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """M/R rows of the sum of all ranks' products: sends each rank's product while the next one is computed."""
    # Registers torch.ops.symm_mem, as in fused_all_gather_matmul.
    import torch.distributed._symmetric_memory

    a, b = products_to_sum(ctx, m=m, k=k, n=n, dtype=dtype)
    group_name = ctx.group.group_name
    # Loads the kernel that multiplies one rank's rows before a rank waits for another: see fused_all_gather_matmul.
    part = torch.mm(a[: m // ctx.world_size], b)
    prepare_workspace(ctx, 2 * part.nbytes)

    def step() -> torch.Tensor:
        rows: torch.Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            a, b, "sum", scatter_dim=0, group_name=group_name
        )
        return rows

    return step
