"""The memory of a rank's device, and pinned memory of the host. Runs in rank processes."""

from __future__ import annotations

import gc

import torch

from pytest_gpuperf.torch_internals import free_cublas_workspaces, free_pinned_memory


def release_memory(device: torch.device) -> None:
    """Gives back what earlier programs left in torch's allocator; nothing on CPUs.

    Cycles that hold tensors, cuBLAS' work space (32 MiB on Hopper, allocated by the first matrix product), and
    the blocks that are cached, pinned ones on the host too.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        free_cublas_workspaces()
        torch.cuda.empty_cache()
        free_pinned_memory()


def pinned_peak() -> int:
    """Returns the most bytes of pinned host memory that torch has held since the peak was reset, in use or cached.

    Torch 2.11 counts the bytes in use wrongly: many that are freed stay counted (pytorch/pytorch#182404). Blocks are
    rounded up to a power of 2.
    """
    return int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0))
