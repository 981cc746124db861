"""What R ranks do through symmetric memory: PyTorch's operations, puts and gets.

A program's step returns what its rank holds afterwards. PyTorch's operations need GPUs; the programs that only
need buffers and barriers run on CPUs as well, see ``memory``.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.inputs import full_width, integers
from suites.shared.peer_memory import Allocate, PeerMemory, allocate, prepare_workspace, symmetric_tensor
from suites.shared.step import Step

Shape = tuple[int, ...]

TURNS = 2
"""A rank sends so many tensors in turn, another one at each step: one that is left over from the last is wrong."""


def sent(rank: int, *, world_size: int, shape: Shape, dtype: torch.dtype, seed: int, step: int = 0) -> torch.Tensor:
    """What a rank sends at a step, on the CPU: numbers that need every bit that their sum leaves them."""
    return full_width(shape, dtype, seed=(seed * TURNS + step % TURNS) * 64 + rank, addends=world_size)


def in_turn(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int) -> Iterator[torch.Tensor]:
    """What the rank sends at one step after the other, on its device."""
    kwargs: dict[str, Any] = {"world_size": ctx.world_size, "shape": shape, "dtype": dtype, "seed": seed}
    return itertools.cycle([sent(ctx.rank, step=step, **kwargs).to(ctx.device) for step in range(TURNS)])


def symmetric(ctx: Context, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor in this rank's symmetric memory; all ranks call it, with tensors of one shape."""
    copy, _ = symmetric_tensor(ctx, tuple(tensor.shape), tensor.dtype)
    return copy.copy_(tensor)


def no_multicast(ctx: Context) -> str | None:
    """Why NVLink multicast cannot be used here; None where it can.

    The environment is asked first: where it forbids multicast, nothing that might touch it is called.
    """
    if os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST") == "1":
        return "NVLink multicast is off: TORCH_SYMM_MEM_DISABLE_MULTICAST=1"
    if os.environ.get("NCCL_NVLS_ENABLE") == "0":
        return "NVLink multicast is off: NCCL_NVLS_ENABLE=0"
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _SymmetricMemory

    if not _SymmetricMemory.has_multicast_support(DeviceType.CUDA, ctx.device.index):
        return "these GPUs have no NVLink multicast"
    return None


# torch.ops.symm_mem's sums over all ranks. One-shot: each rank reads all inputs and adds them up by itself. Two-shot:
# each rank adds up its part, then all read the parts of all. With multicast, the switch adds.
ONE_AND_TWO_SHOT = (
    "one_shot_all_reduce",
    "one_shot_all_reduce_out",
    "two_shot_all_reduce_",
    "two_shot_all_reduce_out",
)
MULTICAST = ("multimem_all_reduce_", "multimem_one_shot_all_reduce")


def all_reduce(ctx: Context, *, operation: str, shape: Shape, dtype: torch.dtype, seed: int) -> Step[torch.Tensor]:
    """One of the operations of torch.ops.symm_mem; its name says whether it works in place or fills a tensor."""
    reason = no_multicast(ctx) if operation in MULTICAST else None
    if reason:
        pytest.skip(reason)
    mine = symmetric(ctx, next(in_turn(ctx, shape=shape, dtype=dtype, seed=seed)))
    into = [torch.empty_like(mine)] if operation.endswith("_out") else []

    def step() -> torch.Tensor:
        result: torch.Tensor = getattr(torch.ops.symm_mem, operation)(mine, "sum", ctx.group.group_name, *into)
        return result

    return step


def all_reduce_by_gets(
    ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, allocate: Allocate = allocate
) -> Step[torch.Tensor]:
    """One-shot by hand: each rank adds up all ranks' buffers."""
    turns = in_turn(ctx, shape=shape, dtype=dtype, seed=seed)
    memory = allocate(ctx, math.prod(shape) * dtype.itemsize)
    mine = memory.buffer(ctx.rank, shape, dtype)

    def step() -> torch.Tensor:
        mine.copy_(next(turns))
        memory.barrier()
        out = torch.zeros(shape, dtype=dtype, device=ctx.device)
        for rank in range(ctx.world_size):
            out += memory.buffer(rank, shape, dtype)
        memory.barrier()  # nobody's buffer changes or goes while others read it
        return out

    return step


def all_gather(
    ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, symmetric_input: bool
) -> Step[torch.Tensor]:
    """Copies by the copy engines, on a stream of their own, from a symmetric input or from a workspace."""
    import torch.distributed._symmetric_memory

    x = sent(ctx.rank, world_size=ctx.world_size, shape=shape, dtype=dtype, seed=seed)
    x = symmetric(ctx, x) if symmetric_input else x.to(ctx.device)
    prepare_workspace(ctx, x.nbytes)
    return lambda: _waited(torch.ops.symm_mem._low_contention_all_gather(x, ctx.group.group_name))


def reduce_scatter(
    ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, symmetric_input: bool
) -> Step[torch.Tensor]:
    """Copies of each rank's part, then the sum; ``shape`` is that of the output."""
    import torch.distributed._symmetric_memory

    whole = (ctx.world_size * shape[0], *shape[1:])
    x = sent(ctx.rank, world_size=ctx.world_size, shape=whole, dtype=dtype, seed=seed)
    x = symmetric(ctx, x) if symmetric_input else x.to(ctx.device)
    prepare_workspace(ctx, x.nbytes)
    return lambda: _waited(torch.ops.symm_mem._low_contention_reduce_scatter(x, "sum", ctx.group.group_name))


def _waited(result: torch.Tensor) -> torch.Tensor:
    waited: torch.Tensor = torch.ops._c10d_functional.wait_tensor(result)
    return waited


def matmul_inputs(rank: int, *, m: int, k: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's M x K and K x N whole numbers, on the CPU."""
    first = integers((m, k), torch.float32, seed=seed * 64 + 2 * rank)
    return first, integers((k, n), torch.float32, seed=seed * 64 + 2 * rank + 1)


def matmul_then_reduce_scatter(ctx: Context, *, m: int, k: int, n: int, seed: int) -> Step[torch.Tensor]:
    """Each rank multiplies, then its rows of the sum of all products arrive: multiplies first, then reduces."""
    a, b = (factor.to(ctx.device) for factor in matmul_inputs(ctx.rank, m=m, k=k, n=n, seed=seed))
    out = torch.empty(m // ctx.world_size, n, device=ctx.device)

    def step() -> torch.Tensor:
        dist.reduce_scatter_tensor(out, a @ b)
        return out

    return step


def fused_matmul_reduce_scatter(ctx: Context, *, m: int, k: int, n: int, seed: int) -> Step[torch.Tensor]:
    """The rank's rows of the sum of all products, as ``matmul_then_reduce_scatter`` has them.

    A rank multiplies the rows of one rank while the rows before are fetched by the rank that they belong to.
    """
    # Registers torch.ops.symm_mem; here, since the module is alpha, and nothing else should depend on it.
    import torch.distributed._symmetric_memory

    a, b = (factor.to(ctx.device) for factor in matmul_inputs(ctx.rank, m=m, k=k, n=n, seed=seed))
    # Loads the kernels that the step launches. CUDA loads a kernel when it is first launched and waits for the device
    # meanwhile; within the step, the device could be waiting for a peer whose host is stuck in the same: a deadlock.
    part = torch.mm(a.chunk(ctx.world_size)[0], b).expand(ctx.world_size, -1, -1).contiguous().sum(dim=0)
    prepare_workspace(ctx, 2 * part.nbytes)

    def step() -> torch.Tensor:
        rows: torch.Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            a, b, "sum", scatter_dim=0, group_name=ctx.group.group_name
        )
        return rows

    return step


def put(
    ctx: Context,
    *,
    shape: Shape,
    dtype: torch.dtype,
    seed: int,
    distance: int,
    offset: int = 0,
    allocate: Allocate = allocate,
) -> Step[torch.Tensor]:
    """Each rank writes its tensor into the buffer of the rank ``distance`` further, ``offset`` elements in."""
    turns = in_turn(ctx, shape=shape, dtype=dtype, seed=seed)
    memory = allocate(ctx, (math.prod(shape) + offset) * dtype.itemsize)
    there = memory.buffer((ctx.rank + distance) % ctx.world_size, shape, dtype, offset)
    here = memory.buffer(ctx.rank, shape, dtype, offset)

    def step() -> torch.Tensor:
        memory.barrier()  # what came at the last step has been read
        there.copy_(next(turns))
        memory.barrier()
        return here.clone()

    return step


def get(
    ctx: Context,
    *,
    shape: Shape,
    dtype: torch.dtype,
    seed: int,
    distance: int,
    offset: int = 0,
    allocate: Allocate = allocate,
) -> Step[torch.Tensor]:
    """Each rank reads the buffer of the rank ``distance`` before it."""
    turns = in_turn(ctx, shape=shape, dtype=dtype, seed=seed)
    memory = allocate(ctx, (math.prod(shape) + offset) * dtype.itemsize)
    here = memory.buffer(ctx.rank, shape, dtype, offset)
    there = memory.buffer((ctx.rank - distance) % ctx.world_size, shape, dtype, offset)

    def step() -> torch.Tensor:
        here.copy_(next(turns))
        memory.barrier()
        out = there.clone()
        memory.barrier()  # all have read, before anybody writes the next one
        return out

    return step


def put_with_signal(ctx: Context, *, shape: Shape, dtype: torch.dtype, seed: int, distance: int) -> Step[torch.Tensor]:
    """As ``put``, but each rank waits for its own sender alone, and none for all."""
    turns = in_turn(ctx, shape=shape, dtype=dtype, seed=seed)
    memory = PeerMemory(ctx, math.prod(shape) * dtype.itemsize)
    receiver, sender = ((ctx.rank + way) % ctx.world_size for way in (distance, -distance))
    there, here = (memory.buffer(rank, shape, dtype) for rank in (receiver, ctx.rank))

    def step() -> torch.Tensor:
        there.copy_(next(turns))
        memory.handle.put_signal(receiver, channel=0)
        memory.handle.wait_signal(sender, channel=0)
        arrived = here.clone()
        # The other way round: has been read, may be written again.
        memory.handle.put_signal(sender, channel=1)
        memory.handle.wait_signal(receiver, channel=1)
        return arrived

    return step
