"""The operating system, its CPUs and its PCI bus, from /proc and /sys."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from pytest_gpuperf.features.doctor.facts import SystemFacts
from pytest_gpuperf.features.doctor.readers.text import list_folder, read, read_number
from pytest_gpuperf.hardware.numa import parse_cores, read_nodes

MODULES = ("nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "gdrdrv", "efa", "mlx5_ib", "ib_uverbs", "nouveau")
"""The kernel modules that are looked for."""

_NVIDIA, _DISPLAY = 0x10DE, 0x03  # PCI vendor, and the class of display controllers
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)")
_MOST_LOG = 4 * 1024**2  # bytes of the kernel's log; it holds less by default


def read_system(root: Path, cores_allowed: tuple[int, ...]) -> SystemFacts:
    """Reads the facts.

    Args:
        root: Where proc, sys and dev are; / outside of tests.
        cores_allowed: Cores on which this process may run.
    """
    proc, sys = root / "proc", root / "sys"
    memory = _read_memory(proc)
    online = read(sys / "devices/system/cpu/online")
    booted = (read(proc / "cmdline") or "").split()
    return SystemFacts(
        hostname=read(proc / "sys/kernel/hostname") or "",
        boot_id=read(proc / "sys/kernel/random/boot_id") or "",
        kernel=read(proc / "sys/kernel/osrelease") or "",
        iommu_options=tuple(word for word in booted if "iommu" in word),
        cores_online=None if online is None else len(parse_cores(online)),
        cores_allowed=cores_allowed,
        cpu_quota=_read_quota(sys / "fs/cgroup"),
        nodes=read_nodes(sys),
        governors=_read_governors(sys),
        numa_balancing=_make_flag(read_number(proc / "sys/kernel/numa_balancing")),
        iommu_translates=_read_iommu(sys / "kernel/iommu_groups"),
        memory_bytes=memory.get("MemTotal"),
        memory_free_bytes=memory.get("MemAvailable"),
        modules=_read_modules(proc),
        pci_gpus=_count_pci_gpus(sys / "bus/pci/devices"),
        xids=read_xids(root / "dev/kmsg"),
    )


def read_xids(path: Path) -> tuple[tuple[str, int], ...] | None:
    """The Xids in the kernel's log, oldest first; None if this process may not read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        text = b"\n".join(_read_records(descriptor)).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return tuple((bus, int(xid)) for bus, xid in _XID.findall(text))


def _read_records(descriptor: int) -> list[bytes]:
    found, size = [], 0
    while size < _MOST_LOG:
        try:
            record = os.read(descriptor, 8192)  # one record a read, as /dev/kmsg has it
        except BlockingIOError:
            break  # the end of what is there
        except OSError as error:
            if error.errno == errno.EPIPE:  # older records were overwritten meanwhile
                continue
            raise
        if not record:
            break
        found.append(record)
        size += len(record)
    return found


def _read_memory(proc: Path) -> dict[str, int]:
    lines = (line.split() for line in (read(proc / "meminfo") or "").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[1].isdigit()}


def _read_quota(cgroup: Path) -> float | None:
    words = (read(cgroup / "cpu.max") or "").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    quota, period = read_number(cgroup / "cpu/cpu.cfs_quota_us"), read_number(cgroup / "cpu/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _read_governors(sys: Path) -> tuple[str, ...]:
    policies = list_folder(sys / "devices/system/cpu/cpufreq")
    return tuple(sorted({text for path in policies if (text := read(path / "scaling_governor"))}))


def _read_iommu(groups: Path) -> bool | None:
    kinds = {text for path in list_folder(groups) if (text := read(path / "type"))}
    if not kinds:
        return False if groups.is_dir() else None
    return any(kind.startswith("DMA") for kind in kinds)


def _read_modules(proc: Path) -> tuple[str, ...] | None:
    text = read(proc / "modules")
    if text is None:
        return None
    loaded = {line.split()[0] for line in text.splitlines() if line.split()}
    return tuple(name for name in MODULES if name in loaded)


def _count_pci_gpus(devices: Path) -> int | None:
    folders = list_folder(devices)
    if not folders:
        return None
    gpus = 0
    for folder in folders:
        kind = read_number(folder / "class")
        gpus += read_number(folder / "vendor") == _NVIDIA and kind is not None and kind >> 16 == _DISPLAY
    return gpus


def _make_flag(value: int | None) -> bool | None:
    return None if value is None else value != 0
