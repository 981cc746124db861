"""NCCL's log of a rank, kept in the rank's memory. Runs in rank processes."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_gpuperf.hardware.nccl_log import ENVIRONMENT, NcclLog

MEMORY = "memory"
"""As ``NCCL_DEBUG_FILE``: the rank gives NCCL a file that only its process has."""
_FILE = "NCCL_DEBUG_FILE"
LOGGED = {**ENVIRONMENT, _FILE: MEMORY}
"""What ``nccl_log=True`` of the marker sets for the ranks."""


def keep_log() -> None:
    """Makes the file that is asked for, before NCCL is loaded; it ends with the process."""
    if os.environ.get(_FILE) == MEMORY:
        os.environ[_FILE] = f"/proc/self/fd/{os.memfd_create('nccl-log')}"


def read_log() -> NcclLog:
    """What NCCL has written so far.

    Raises:
        RuntimeError: nobody has asked NCCL to keep a log.
    """
    path = os.environ.get(_FILE)
    if path is None:
        raise RuntimeError(
            "this rank keeps no log of NCCL: give its test the marker ranks(..., nccl_log=True), or set "
            "NCCL_DEBUG=INFO and NCCL_DEBUG_FILE"
        )
    expanded = path.replace("%h", os.uname().nodename).replace("%p", str(os.getpid()))
    file = Path(expanded)
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    return NcclLog.of(text, _read_nccl_version())


def _read_nccl_version() -> str:
    """The version of the NCCL that torch has loaded; empty if it has none."""
    import torch

    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except (AttributeError, RuntimeError):  # a torch without CUDA
        return ""
