"""The memory of a rank's device between programs. Runs in rank processes."""

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
