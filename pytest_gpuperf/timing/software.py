"""Versions of what a rank runs on. Runs in rank processes."""

from __future__ import annotations

import contextlib
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

LIBRARIES = ("nvidia-cublas", "nvidia-cublas-cu12", "triton")
"""Distributions that can be replaced beside the same torch."""


def software(context: Context) -> dict[str, str]:
    """Versions by name; entry function of a run."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    if context.device.type == "cuda":
        versions["cuda"] = str(torch.version.cuda)
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        for distribution in LIBRARIES:
            with contextlib.suppress(PackageNotFoundError):
                versions[distribution] = version(distribution)
    return versions
