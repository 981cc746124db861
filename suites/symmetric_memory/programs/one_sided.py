"""Memory that other ranks write to and signal, without the owner's help: NVSHMEM's heap, and on CPUs mapped files.

Both have the same operations with the same promises, so that a protocol built on them is tested without GPUs too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.peer_memory import MappedFiles, symmetric_tensor
from suites.symmetric_memory.programs.heap import require_heap
from suites.symmetric_memory.programs.nvshmem import use_nvshmem

ENVIRON = {
    "TORCH_SYMMMEM": "NVSHMEM",
    "NVSHMEM_REMOTE_TRANSPORT": "none",  # one host: it need not look for network cards
    "NVSHMEM_DISABLE_NCCL": "1",  # its collectives are its own: it would else hand some of them to NCCL
    "NVSHMEM_DISABLE_NVLS": "1",  # multicast stays off
}
"""The environment of ranks that use NVSHMEM; they get separate processes, since other ranks' environment differs."""
WORDS = 2
"""Signals that a rank can receive, by number."""


class OneSided(Protocol):
    """One rank's part of such memory. All ranks allocate the same tensors, in one order."""

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeros that have a place in every rank's memory."""

    def put(self, tensor: torch.Tensor, peer: int, word: int) -> None:
        """Writes the tensor to its place in another rank's memory, and signals that it is there."""

    def signal(self, peer: int, word: int) -> None:
        """Signals another rank, and writes nothing else."""

    def wait(self, word: int, peer: int) -> None:
        """Waits for a signal, and is ready for the next one."""

    def all_to_all(self, given: torch.Tensor, out: torch.Tensor) -> None:
        """Part r of the tensor goes to rank r; afterwards all parts for this rank have arrived, in rank order.

        Nobody is asked whether ``out`` may be written to.
        """


OpenMemory = Callable[[Context, int], OneSided]
"""Takes how many bytes the rank will allocate."""


class NvshmemHeap:
    """NVSHMEM's symmetric heap. Everything is done by the current stream, and the host waits for nothing."""

    def __init__(self, ctx: Context, nbytes: int) -> None:
        use_nvshmem(ctx)
        for operation in ("put_with_signal", "wait_for_signal", "all_to_all"):
            if not hasattr(torch.ops.symm_mem, f"nvshmem_{operation}"):
                pytest.skip(f"torch {torch.__version__} has no torch.ops.symm_mem.nvshmem_{operation}")
        import torch.distributed._symmetric_memory as symm_mem

        self._ctx = ctx
        require_heap(nbytes)
        self._token = self.allocate(1, torch.int64)
        pad = symm_mem.rendezvous(self._token, ctx.group).get_signal_pad(ctx.rank)
        self._words = [pad[2 * word : 2 * word + 2] for word in range(WORDS)]  # of 64 bits; the pad has 32

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of its own: torch tells NVSHMEM the size of the allocation, whatever part of it is passed."""
        tensor, _ = symmetric_tensor(self._ctx, (numel,), dtype)
        tensor.zero_()
        torch.cuda.synchronize()
        dist.barrier()  # nobody writes to it before its owner has wiped it
        return tensor

    def put(self, tensor: torch.Tensor, peer: int, word: int) -> None:
        """By a copy engine."""
        torch.ops.symm_mem.nvshmem_put_with_signal(tensor, self._words[word], 1, peer)

    def signal(self, peer: int, word: int) -> None:
        """As a put of eight bytes that nobody reads."""
        self.put(self._token, peer, word)

    def wait(self, word: int, peer: int) -> None:
        """The stream waits."""
        torch.ops.symm_mem.nvshmem_wait_for_signal(self._words[word], 1, peer)
        self._words[word].zero_()

    def all_to_all(self, given: torch.Tensor, out: torch.Tensor) -> None:
        """NVSHMEM's own."""
        torch.ops.symm_mem.nvshmem_all_to_all(given, out, self._ctx.group.group_name)


class MappedHeap:
    """One-sided memory on CPUs: files that every rank maps. A store that was made before a signal is seen after it."""

    def __init__(self, ctx: Context, nbytes: int, meet: Callable[[], object] = dist.barrier) -> None:
        self._ctx = ctx
        self._meet = meet
        self._words = MappedFiles(WORDS * torch.int64.itemsize)
        self._own = self._words.buffer(ctx.rank, (WORDS,), torch.int64)
        self._files: dict[int, MappedFiles] = {}

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A file of its own."""
        files = MappedFiles(numel * dtype.itemsize)
        tensor = files.buffer(self._ctx.rank, (numel,), dtype)
        self._files[tensor.data_ptr()] = files
        return tensor

    def put(self, tensor: torch.Tensor, peer: int, word: int) -> None:
        """By a copy."""
        self._there(tensor, peer).copy_(tensor)
        self.signal(peer, word)

    def signal(self, peer: int, word: int) -> None:
        """By a store."""
        self._words.buffer(peer, (WORDS,), torch.int64)[word] = 1

    def wait(self, word: int, peer: int) -> None:
        """Looks again and again."""
        while int(self._own[word]) != 1:
            time.sleep(0)
        self._own[word] = 0

    def all_to_all(self, given: torch.Tensor, out: torch.Tensor) -> None:
        """By copies; nobody returns before all have made theirs."""
        for peer, part in enumerate(given.chunk(self._ctx.world_size)):
            self._there(out, peer).chunk(self._ctx.world_size)[self._ctx.rank].copy_(part)
        self._meet()

    def _there(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        return self._files[tensor.data_ptr()].buffer(peer, tuple(tensor.shape), tensor.dtype)


def open_memory(ctx: Context, nbytes: int) -> OneSided:
    """So many bytes on every rank; all ranks call it, with the same number."""
    return NvshmemHeap(ctx, nbytes) if ctx.device.type == "cuda" else MappedHeap(ctx, nbytes)
