"""The memory of a rank's device, and pinned memory of the host. Runs in rank processes."""

from __future__ import annotations

import gc

import torch

from pytest_gpuperf.torch_internals import free_cublas_workspaces, free_pinned_memory

SMALL = 2**20  # bytes: less is no matter, and to release memory takes 0.1 s


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


def count_held_bytes(device: torch.device) -> int:
    """Bytes of the device's memory that tensors hold now; 0 on CPUs.

    NCCL lets go of an earlier program's tensors in the next collective only, if nobody waited for the operation
    (``shelvesToUnstash_`` of torch's ProcessGroupNCCL). So ask after one.
    """
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def own_peak(peak: int | None, before: int, device: torch.device) -> int | None:
    """A program's share of a peak, in bytes: without what other programs' tensors hold; once the program is gone.

    Args:
        peak: of all tensors while it ran; None on CPUs.
        before: bytes that tensors held when it began, after memory was released.
        device: the rank's.
    """
    if peak is None or before < SMALL:
        return peak
    release_memory(device)
    # What was given back meanwhile may not have been there at the peak.
    return peak - min(before, count_held_bytes(device))


def read_pinned_peak() -> int:
    """Returns the most bytes of pinned host memory that torch has held since the peak was reset, in use or cached.

    Torch 2.11 counts the bytes in use wrongly: many that are freed stay counted (pytorch/pytorch#182404). Blocks are
    rounded up to a power of 2.
    """
    return int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0))
