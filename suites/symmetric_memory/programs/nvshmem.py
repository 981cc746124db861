"""NVSHMEM's operations, as torch offers them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.step import Step
from suites.symmetric_memory.programs.heap import require_heap
from suites.symmetric_memory.programs.operations import sent, symmetric

# torch's nvshmem_put and nvshmem_get name no group: they meet the ranks of this one (nvshmem_extension.cu), the first
# default group, and so would wait for ranks that neither put nor get, had all not met there before.
PUT_GROUP: Any = "0"  # a str; for newer versions of torch of a type of its own


def use_nvshmem(ctx: Context) -> None:
    """Takes NVSHMEM for all symmetric memory of this process, or skips where that is not there.

    A process has one backend from its first allocation on: this needs processes that used no other.
    """
    import torch.distributed._symmetric_memory as symm_mem

    if not symm_mem.is_nvshmem_available():
        pytest.skip("this torch finds no NVSHMEM: neither built in, nor libnvshmem_host.so.3")
    if symm_mem.get_backend(ctx.device) != "NVSHMEM":
        symm_mem.set_backend("NVSHMEM")


def nvshmem(
    ctx: Context, *, operation: str, numel: int, dtype: torch.dtype, seed: int, root: int = 0
) -> Step[torch.Tensor]:
    """One of NVSHMEM's operations, after which the step returns the rank's tensor.

    put: even ranks write to the ranks after them. get: even ranks read from those. put_with_signal: as put, and the
    receiver waits for the signal, nobody for all. broadcast: from ``root``. all_to_all: R parts, one for each rank.
    """
    use_nvshmem(ctx)
    mine = sent(ctx.rank, world_size=ctx.world_size, shape=(numel,), dtype=dtype, seed=seed)
    require_heap(3 * mine.nbytes)
    import torch.distributed._symmetric_memory as symm_mem

    if not hasattr(torch.ops.symm_mem, f"nvshmem_{operation}"):
        pytest.skip(f"torch {torch.__version__} has no torch.ops.symm_mem.nvshmem_{operation}")
    tensor, out = symmetric(ctx, mine), symmetric(ctx, torch.zeros_like(mine))
    pad = symm_mem.rendezvous(tensor, ctx.group).get_signal_pad(ctx.rank)
    if operation in ("put", "get"):
        symm_mem.rendezvous(tensor, PUT_GROUP)
    even, following, name = ctx.rank % 2 == 0, (ctx.rank + 1) % ctx.world_size, ctx.group.group_name
    ops = torch.ops.symm_mem

    def step() -> torch.Tensor:
        arrived = None
        dist.barrier()  # all ranks' tensors hold what they should
        match operation:
            case "put" | "get" if even:
                getattr(ops, f"nvshmem_{operation}")(tensor, following)
            case "put_with_signal" if even:
                ops.nvshmem_put_with_signal(tensor, pad, 1, following)
            case "put_with_signal":
                ops.nvshmem_wait_for_signal(pad, 1, ctx.rank - 1)
                arrived = tensor.clone()  # before any barrier: the signal alone must do
                pad.zero_()
            case "broadcast":
                ops.nvshmem_broadcast(tensor, root, name)
            case "all_to_all":
                ops.nvshmem_all_to_all(tensor, out, name)
        # A put has only been issued when the call returns; the stream's end and a barrier complete it everywhere.
        torch.cuda.synchronize()
        dist.barrier()
        if arrived is not None:
            return arrived
        return (out if operation == "all_to_all" else tensor).clone()

    return step
