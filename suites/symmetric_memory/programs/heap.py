"""Whether NVSHMEM's heap, whose size the environment declares, holds a tensor."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from pytest_gpuperf import GiB, KiB, MiB

# What NVSHMEM's heap holds beside the tensor: torch takes its signal pad from it, of less than 64 KiB, and
# each allocation is aligned.
HEAP_RESERVE = MiB
_SUFFIXES = {"k": KiB, "m": MiB, "g": GiB, "t": 1024 * GiB}


def heap_size(environ: Mapping[str, str]) -> int:
    """The bytes that NVSHMEM_SYMMETRIC_SIZE declares: a number, then perhaps K, M, G or T; 1 GiB where unset.

    https://docs.nvidia.com/nvshmem/api/gen/env.html

    Raises:
        ValueError: it is no size.
    """
    text = environ.get("NVSHMEM_SYMMETRIC_SIZE", "1G")
    factor = _SUFFIXES.get(text[-1:].lower(), 0)
    try:
        return math.ceil(float(text[:-1] if factor else text) * (factor or 1))
    except (ValueError, OverflowError):
        raise ValueError(f"NVSHMEM_SYMMETRIC_SIZE must be a size like 512M or 2G, got {text!r}") from None


def require_heap(nbytes: int, environ: Mapping[str, str] | None = None) -> None:
    """Raises where so many bytes do not fit into the heap that the environment declares.

    NVSHMEM answers with a null pointer, which torch does not look at. Where CUDA's virtual memory is in use, as it
    is by default, NVSHMEM lets the heap grow instead; a program that needs that fails where it is not.

    Args:
        nbytes: of the tensor.
        environ: the environment that declares the heap; by default this process's own.

    Raises:
        MemoryError: says which NVSHMEM_SYMMETRIC_SIZE would do.
    """
    # As a default argument it would be the pytest process's: this module travels to the ranks by value.
    declared = heap_size(os.environ if environ is None else environ)
    needed = nbytes + HEAP_RESERVE
    if needed > declared:
        raise MemoryError(
            f"{nbytes} bytes of symmetric memory do not fit into NVSHMEM's heap of {declared} bytes: set "
            f"NVSHMEM_SYMMETRIC_SIZE={math.ceil(needed / MiB)}M or more before the ranks start"
        )
