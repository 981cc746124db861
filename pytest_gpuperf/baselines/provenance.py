"""When, where and by whom metrics came to be."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path

from pytest_gpuperf.baselines.merge import Stamp
from pytest_gpuperf.git import GitFailed, run_git, show

UNKNOWN = "unknown"

SETTINGS = ("CUBLAS", "CUDNN_", "NCCL_", "NVSHMEM_", "TORCH_NCCL_", "TORCH_SYMM_MEM_")
"""How the names of variables begin that may change how fast everything is."""
MORE_SETTINGS = frozenset(
    {
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
    }
)
_GIT_TIMEOUT = 10.0  # seconds; no run waits longer for its commit and its author


def read_time() -> str:
    """ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_date() -> datetime.date:
    """The day in UTC, the same for all who share a file."""
    return datetime.datetime.now(datetime.UTC).date()


def select_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that may change how fast everything is, by name."""
    return {name: environ[name] for name in sorted(environ) if name.startswith(SETTINGS) or name in MORE_SETTINGS}


def read_commit(folder: Path) -> str:
    """The commit that is checked out."""
    commit = _run_git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    # A runner may work on an export without history; GitHub's tell the commit in any case. That of a pull request is a
    # merge which nobody has later.
    if commit != UNKNOWN or os.environ.get("GITHUB_REF", "").startswith("refs/pull/"):
        return commit
    return os.environ.get("GITHUB_SHA", UNKNOWN)


def is_dirty(folder: Path) -> bool:
    """Whether tracked files of the checkout have changes that are not committed; False where git does not tell."""
    return _run_git(folder, "status", "--porcelain", "--untracked-files=no") != UNKNOWN


def stamp(folder: Path, reason: str) -> Stamp:
    """What a file keeps of an update that is made now."""
    return Stamp(
        at=read_time(), commit=read_commit(folder), author=_run_git(folder, "config", "user.name"), reason=reason
    )


def _run_git(folder: Path, *arguments: str) -> str:
    try:
        return show(run_git(folder, *arguments, timeout=_GIT_TIMEOUT)) or UNKNOWN
    except GitFailed:
        return UNKNOWN
