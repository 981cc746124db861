"""Memory that all ranks of a host reach: the same bytes on every rank, and who has which of them.

On GPUs it is torch.distributed._symmetric_memory, on CPUs files that every rank maps: what is built on
buffers, offsets and barriers runs on both. An offset into a buffer counts elements, as ``get_buffer``'s does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Protocol

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context


class SymmetricMemory(Protocol):
    """A buffer on each rank, all of one size, each of them open to every rank."""

    def buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A view of that rank's bytes. Whoever writes to it, all ranks see it after a barrier."""

    def barrier(self) -> None:
        """What any rank wrote before it, every rank reads after it."""


Allocate = Callable[[Context, int], SymmetricMemory]
"""Gives so many bytes on every rank."""


class MappedFiles:
    """Symmetric memory of CPUs: one file for each rank, held in memory and mapped by all of them."""

    def __init__(self, nbytes: int) -> None:
        file = os.memfd_create("symmetric")
        try:
            os.truncate(file, nbytes)
            mine = torch.tensor([os.getpid(), file])
            files = mine.new_empty(dist.get_world_size() * 2)
            dist.all_gather_into_tensor(files, mine)
            self._bytes = [
                torch.from_file(f"/proc/{pid}/fd/{number}", shared=True, size=nbytes, dtype=torch.uint8)
                for pid, number in files.view(-1, 2).tolist()
            ]
            dist.barrier()  # the file's owner keeps it open until all have mapped it
        finally:
            os.close(file)

    def buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A view of the rank's file."""
        return view(self._bytes[rank], shape, dtype, offset)

    def barrier(self) -> None:
        """The processes wait for one another; their stores are done by then."""
        dist.barrier()


class PeerMemory:
    """Symmetric memory of GPUs: each buffer in its own GPU's memory, mapped into all ranks."""

    def __init__(self, ctx: Context, nbytes: int) -> None:
        self.tensor, self.handle = symmetric_tensor(ctx, (nbytes,), torch.uint8)

    def buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A view of the rank's memory, on this rank's device."""
        of_rank: torch.Tensor = self.handle.get_buffer(rank, shape, dtype, offset)
        return of_rank

    def barrier(self) -> None:
        """A kernel on the current stream: the streams wait for one another, the processes do not."""
        self.handle.barrier(channel=0)


def allocate(ctx: Context, nbytes: int) -> SymmetricMemory:
    """So many bytes on every rank; all ranks call it, with the same number."""
    return PeerMemory(ctx, nbytes) if ctx.device.type == "cuda" else MappedFiles(nbytes)


def symmetric_tensor(ctx: Context, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
    """A tensor in the symmetric memory of a GPU, and torch's handle; all ranks call it, with the same shape.

    ``empty`` wipes the tensor's signals on the device, and CUDA does not promise that the host waits for it. A peer's
    signal that came earlier would be lost, and its receiver would wait forever: pytorch/pytorch#196546 is this race in
    NVSHMEM's allocator. So the rank waits here, before any peer can reach the memory.

    Raises:
        pytest.skip.Exception: The ranks are on several nodes.
    """
    if ctx.num_nodes > 1:
        pytest.skip(f"the ranks are on {ctx.num_nodes} nodes, whose GPUs do not reach each other's memory")
    # Here, since the module is alpha, and nothing else should depend on it.
    import torch.distributed._symmetric_memory as symm_mem

    tensor = symm_mem.empty(shape, dtype=dtype, device=ctx.device)
    torch.cuda.synchronize(ctx.device)
    return tensor, symm_mem.rendezvous(tensor, ctx.group)


def prepare_workspace(ctx: Context, nbytes: int) -> None:
    """Has torch make what its operations on symmetric memory share, so many bytes; all ranks call it.

    They would make it when they are first called, and signal at once, before the signals are wiped: see
    ``symmetric_tensor``. With torch 2.11 both ranks of a fused product waited forever, beside 11 other pairs.
    """
    import torch.distributed._symmetric_memory as symm_mem

    symm_mem.get_symm_mem_workspace(ctx.group.group_name, nbytes)
    torch.cuda.synchronize(ctx.device)
    dist.barrier()


def view(memory: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """Some of a tensor of bytes as another dtype.

    Raises:
        ValueError: it would reach beyond the end.
    """
    start, nbytes = offset * dtype.itemsize, math.prod(shape) * dtype.itemsize
    if start + nbytes > memory.numel():
        raise ValueError(f"a buffer of {memory.numel()} bytes has no {nbytes} bytes from byte {start} on")
    return memory.narrow(0, start, nbytes).view(dtype).view(shape)
