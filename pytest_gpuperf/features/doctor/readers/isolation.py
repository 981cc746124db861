"""What a container, a cgroup or a login leaves this process."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path

from pytest_gpuperf.features.doctor.facts import UNLIMITED, IsolationFacts
from pytest_gpuperf.features.doctor.readers.text import read

# The first namespaces of the system have fixed numbers: include/linux/proc_ns.h, PROC_IPC_INIT_INO and
# PROC_PID_INIT_INO.
_HOST_IPC, _HOST_PID = "ipc:[4026531839]", "pid:[4026531836]"

# include/uapi/linux/capability.h
_CAPABILITIES = {14: "CAP_IPC_LOCK", 19: "CAP_SYS_PTRACE", 21: "CAP_SYS_ADMIN", 23: "CAP_SYS_NICE"}

_LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
}


def read_isolation(root: Path, environ: Mapping[str, str]) -> IsolationFacts:
    """Reads the facts.

    Args:
        root: Where proc and dev are; / outside of tests.
        environ: Names the kind of container.
    """
    size, free = _read_space(root / "dev/shm")
    return IsolationFacts(
        container=detect_container(root, environ),
        shm_bytes=size,
        shm_free_bytes=free,
        host_ipc=_is(root / "proc/self/ns/ipc", _HOST_IPC),
        host_pid=_is(root / "proc/self/ns/pid", _HOST_PID),
        limits={name: _read_limit(number) for name, number in _LIMITS.items()},
        capabilities=_read_capabilities(root / "proc/self/status"),
    )


def detect_container(root: Path, environ: Mapping[str, str]) -> str:
    """The kind of container that this process runs in; empty outside of one."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if "SINGULARITY_CONTAINER" in environ or "APPTAINER_CONTAINER" in environ:
        return "apptainer"
    groups = read(root / "proc/1/cgroup") or ""
    named = next((word for word in ("kubepods", "docker", "containerd", "libpod") if word in groups), "")
    return "kubernetes" if named == "kubepods" else "container" if named else ""


def _read_space(path: Path) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return 0, 0
    except OSError:
        return None, None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _is(link: Path, expected: str) -> bool | None:
    try:
        return os.readlink(link) == expected
    except OSError:
        return None


def _read_limit(number: int) -> tuple[int, int]:
    soft, hard = resource.getrlimit(number)
    return tuple(UNLIMITED if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))  # type: ignore[return-value]


def _read_capabilities(status: Path) -> tuple[str, ...] | None:
    for line in (read(status) or "").splitlines():
        if line.startswith("CapEff:"):
            bits = int(line.split()[1], 16)
            return tuple(name for bit, name in _CAPABILITIES.items() if bits >> bit & 1)
    return None
