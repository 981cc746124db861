"""Collectives with matmul at many heights: programs for ``perf.sweep``, whose sizes are the bytes of the whole A.

M, K, N: the product's matrices are M x K and K x N.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.peer_memory import prepare_workspace
from suites.shared.step import Step, StepOf
from suites.tensor_parallel.programs.collective_matmul import matmul_inputs

DTYPE = torch.bfloat16


def rows_of(nbytes: int, k: int) -> int:
    """M, when the whole A has so many bytes."""
    return nbytes // (k * DTYPE.itemsize)


def in_turn(ctx: Context, *, sizes: Sequence[int], k: int, n: int) -> StepOf:
    """All of A times the rank's B: gathers first, then multiplies."""
    a, b = matmul_inputs(ctx, m=rows_of(sizes[-1], k), k=k, n=n, dtype=DTYPE)
    whole = torch.empty(a.shape[0] * ctx.world_size, k, dtype=DTYPE, device=ctx.device)

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        m = rows_of(nbytes, k)
        mine, gathered = a[: m // ctx.world_size], whole[:m]

        def step() -> torch.Tensor:
            dist.all_gather_into_tensor(gathered, mine)
            return torch.matmul(gathered, b)

        return step

    return step_of


def fused(ctx: Context, *, sizes: Sequence[int], k: int, n: int) -> StepOf:
    """All of A times the rank's B: multiplies each shard of A while the next one is copied from its rank's memory."""
    # Registers torch.ops.symm_mem; here, since the module is alpha, and nothing else should depend on it.
    import torch.distributed._symmetric_memory

    a, b = matmul_inputs(ctx, m=rows_of(sizes[-1], k), k=k, n=n, dtype=DTYPE)
    name = ctx.group.group_name
    prepare_workspace(ctx, a.nbytes)

    def step_of(nbytes: int) -> Step[torch.Tensor]:
        mine = a[: rows_of(nbytes, k) // ctx.world_size]
        torch.mm(mine, b)  # loads the kernel before a rank waits for another: see fused_all_gather_matmul

        def step() -> torch.Tensor:
            _, products = torch.ops.symm_mem.fused_all_gather_matmul(
                mine, [b], gather_dim=0, group_name=name, return_A=False
            )
            product: torch.Tensor = products[0]
            return product

        return step

    return step_of
