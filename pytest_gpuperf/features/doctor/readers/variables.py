"""Variables that NCCL, CUDA, torch and NVIDIA's libraries read, from the environment and from NCCL's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_gpuperf.features.doctor.readers.text import read_given

PREFIXES = (
    "NCCL_",
    "CUDA_",
    "TORCH_NCCL_",
    "TORCH_SYMM",
    "TORCH_FR_",
    "TORCH_DISTRIBUTED_",
    "NVSHMEM_",
    "FI_",
    "OFI_NCCL_",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "OMP_NUM_THREADS",
)
"""No other variable is read: an environment holds secrets."""


def read_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that bear on GPUs, by name."""
    return {name: environ[name] for name in sorted(environ) if name.startswith(PREFIXES)}


def read_configured(root: Path, environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Variables in the files that NCCL reads, by file: NCCL_CONF_FILE or ~/.nccl.conf, and /etc/nccl.conf.

    NCCL takes what is set first: the environment, then the user's file, then the system's
    (NCCL 2.30, src/misc/param.cc). So the files are in the order in which a later one wins.
    """
    found = {}
    for path in _list_files(environ):
        try:
            text = read_given(root / path.lstrip("/"))
        except (OSError, ValueError):
            continue
        if text is not None:
            pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
            found[path] = {name.strip(): value.strip() for name, sign, value in pairs if sign and name.strip()}
    return found


def read_unreadable(root: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return why NCCL's files that are there cannot be read, by file."""
    found = {}
    for path in _list_files(environ):
        try:
            read_given(root / path.lstrip("/"))
        except (OSError, ValueError) as error:  # a ValueError: no path has a null
            found[path] = getattr(error, "strerror", None) or str(error)
    return found


def _list_files(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("NCCL_CONF_FILE") or (f"{environ['HOME']}/.nccl.conf" if environ.get("HOME") else "")
    return ["/etc/nccl.conf", *([home] if home else [])]
