"""Versions of what is installed, without importing any of it."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from pytest_gpuperf.features.doctor.facts import SoftwareFacts
from pytest_gpuperf.features.doctor.readers.text import read

# Names of NVIDIA's packages end with the CUDA version that they are for; those for CUDA 13 mostly do not.
_LIBRARIES = ("cublas", "cuda-runtime", "cudnn", "nccl", "nvshmem", "nvjitlink")
_SUFFIXES = ("", "-cu11", "-cu12", "-cu13")
NAMES = (
    "torch",
    "triton",
    "nvidia-ml-py",
    "deepspeed",
    "megatron-core",
    *(f"nvidia-{library}{suffix}" for library in _LIBRARIES for suffix in _SUFFIXES),
)
_CUDA = re.compile(r"^cuda\s*(?::[^=]+)?=\s*(?:'([^']*)'|\"([^\"]*)\"|None)", re.MULTILINE)
_EXACT = re.compile(r"^(nvidia-[a-z0-9-]+|triton)\s*\(?==\s*([0-9][^\s;),]*)")


def read_software(
    version: Callable[[str], str] = metadata.version,
    requires: Callable[[str], Iterable[str] | None] = metadata.requires,
    torch_version_file: Callable[[], Path | None] | None = None,
) -> SoftwareFacts:
    """Reads the versions.

    Args:
        version: The version of a package; raises PackageNotFoundError for one that is not installed.
        requires: What a package requires.
        torch_version_file: Finds torch/version.py, which names the CUDA that torch was built for.
    """
    packages = {}
    for name in NAMES:
        try:
            packages[name] = version(name)
        except metadata.PackageNotFoundError:
            continue
    has_torch = "torch" in packages
    file = (torch_version_file or _find_version_file)() if has_torch else None
    return SoftwareFacts(
        python=platform.python_version(),
        packages=packages,
        torch_cuda=find_cuda(None if file is None else read(file), packages["torch"]) if has_torch else None,
        required=_parse_exact(requires("torch") or ()) if has_torch else {},
    )


def find_cuda(source: str | None, version: str) -> str | None:
    """The CUDA version that torch was built for; empty for a build without CUDA; None if neither text names it.

    Args:
        source: Of torch/version.py.
        version: torch's; its local part names CUDA if the file cannot be read.
    """
    found = None if source is None else _CUDA.search(source)
    if found is not None:
        return found[1] or found[2] or ""
    local = version.partition("+")[2]
    if local.startswith("cu") and local[2:].isdigit():
        return f"{local[2:-1]}.{local[-1]}"
    return "" if local == "cpu" else None


def _find_version_file() -> Path | None:
    try:
        return Path(str(metadata.distribution("torch").locate_file("torch/version.py")))
    except metadata.PackageNotFoundError:
        return None


def _parse_exact(requirements: Iterable[str]) -> dict[str, str]:
    found = (_EXACT.match(requirement) for requirement in requirements)
    return {match[1]: match[2] for match in found if match is not None}
