"""The host's settings that bear on GPUs: IOMMU, ACS, NUMA balancing, frequency governors, memory, Xids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.finding import (
    Finding,
    make_critical,
    make_info,
    make_passed,
    make_unknown,
    make_warning,
)
from pytest_gpuperf.features.doctor.words import format_size, join_unique

_RESTART, _RESET, _REPLACE = (
    "restart the program",
    "drain the machine and reset the GPU",
    "drain the machine, run dcgmi diag -r 3 and have the GPU replaced if it recurs",
)

# After NVIDIA's XID error catalogue and the Xid checks of its Health Validation: number, what it is, what to do. Those
# that a program's own fault raises say nothing about the machine: 8, 13, 31, 43, 45, 69, 137.
XIDS: Mapping[int, tuple[str, str]] = {
    38: ("the driver's firmware failed", _RESET),
    46: ("the GPU stopped processing", _RESET),
    48: ("a double-bit memory error", _RESET),
    61: ("the microcontroller broke off", _RESET),
    62: ("the microcontroller halted", _RESET),
    63: ("a memory row was remapped, or a page retired", _RESET),
    64: ("a memory row could not be remapped", _REPLACE),
    68: ("the video processor failed", _RESET),
    74: ("an NVLink error", "look at nvidia-smi nvlink -e; have GPU, bridge or baseboard replaced if it recurs"),
    79: (
        "the GPU has fallen off the bus",
        "restart the machine, look at power and cooling; replace the GPU if it recurs",
    ),
    92: ("many corrected memory errors", _REPLACE),
    94: ("a contained memory error ended a program", "restart the program, and reset the GPU when it is free"),
    95: ("an uncontained memory error", _RESET),
    109: ("a context switch timed out", _RESET),
    110: ("a security fault", _REPLACE),
    119: ("the GPU's system processor (GSP) did not answer", _RESET),
    120: ("the GPU's system processor (GSP) failed", _RESET),
    121: ("an NVLink-C2C error, corrected", "watch whether it recurs, then reset the GPU"),
    140: ("an unrecovered ECC error", _RESET),
    143: ("the GPU did not initialise", _RESET),
    144: ("NVLink 5: SAW error", _RESET),
    145: ("NVLink 5: RLW error", _RESET),
    146: ("NVLink 5: TLW error", _RESET),
    147: ("NVLink 5: TREX error", _RESET),
    148: ("NVLink 5: NVLPW_CTRL error", _RESET),
    149: ("NVLink 5: NETIR error", _RESET),
    150: ("NVLink 5: MSE error", _RESET),
    154: (
        "the driver asks for a recovery of the GPU",
        "see the finding on recovery; reset the GPU or restart the machine",
    ),
}
_PROGRAMS_OWN = (8, 13, 31, 43, 45, 69, 137)
_OWN = ", ".join(map(str, _PROGRAMS_OWN))
_HARMLESS = (63, 94, 121)


def check(facts: Facts) -> Iterator[Finding]:
    """All of the module; nothing without GPUs on the machine."""
    if not facts.inspection.gpus and not facts.system.pci_gpus:
        return
    yield from _check_xids(facts)
    yield from _check_iommu(facts)
    yield from _check_governor(facts)
    yield from _check_balancing(facts)
    yield from _check_memory(facts)
    if facts.system.modules is not None and "nouveau" in facts.system.modules:
        yield make_critical(
            "nouveau",
            "the module nouveau is loaded",
            "it holds GPUs that NVIDIA's driver needs",
            "blacklist nouveau, rebuild the initramfs and restart",
        )


def _check_xids(facts: Facts) -> Iterator[Finding]:
    seen = facts.system.xids
    if seen is None:
        yield make_unknown(
            "xid",
            "the kernel's log is closed to this process",
            "errors that the driver reported earlier are listed there",
            "on the host, as root: dmesg | grep Xid",
        )
        return
    counts = Counter(seen)
    for (bus, number), count in sorted(counts.items()):
        if number in _PROGRAMS_OWN:
            continue
        what, action = XIDS.get(number, ("see NVIDIA's XID error catalogue", _RESTART))
        severity = make_warning if number in _HARMLESS or number not in XIDS else make_critical
        yield severity(
            "xid",
            f"Xid {number} on {bus}, {count} times since the machine started: {what}",
            "the driver reported an error of the GPU, its memory or its links",
            action,
        )
    own = sum(count for (_, number), count in counts.items() if number in _PROGRAMS_OWN)
    if own:
        yield make_info("xid", f"{own} Xids of programs' own faults ({_OWN}) since the machine started")
    elif not counts:
        yield make_passed("xid", "the kernel's log has no Xid")


def _check_iommu(facts: Facts) -> Iterator[Finding]:
    options = facts.system.iommu_options
    if facts.system.iommu_translates:
        yield make_warning(
            "iommu",
            "the IOMMU translates the addresses of devices",
            "direct access between PCIe devices then goes through the CPU's root complex, or hangs",
            "on bare metal boot with iommu=pt, or turn the IOMMU off in the BIOS; virtual machines need it on the host",
        )
    elif facts.system.iommu_translates is False:
        yield make_passed("iommu", "the IOMMU does not translate (off, or passed through)")
    else:
        yield make_unknown(
            "iommu",
            "the kernel does not show its IOMMU groups here"
            + (f" (it was started with {join_unique(options)})" if options else ""),
            "with translation, direct access between PCIe devices is slow or hangs",
            "on the host: cat /sys/kernel/iommu_groups/*/type, and lspci -vvv | grep ACSCtl",
        )


def _check_governor(facts: Facts) -> Iterator[Finding]:
    slow = [name for name in facts.system.governors if name not in ("performance", "schedutil", "ondemand")]
    if slow:
        yield make_warning(
            "governor",
            f"the CPU's frequency governor is {join_unique(slow)}",
            "the host launches kernels more slowly: small messages and small kernels take longer",
            "cpupower frequency-set -g performance",
        )
    elif facts.system.governors and "performance" not in facts.system.governors:
        yield make_info(
            "governor",
            f"the CPU's frequency governor is {join_unique(facts.system.governors)}",
            "cores change their clock with the load, which scatters times of the host",
            "cpupower frequency-set -g performance",
        )
    elif facts.system.governors:
        yield make_passed("governor", "the CPU's frequency governor is performance")


def _check_balancing(facts: Facts) -> Iterator[Finding]:
    if facts.system.numa_balancing and len(facts.system.nodes) > 1:
        yield make_info(
            "numa balancing",
            "the kernel moves pages between NUMA nodes by itself",
            "faults that it provokes for that scatter the host's times",
            "echo 0 > /proc/sys/kernel/numa_balancing",
        )
    elif facts.system.numa_balancing is False:
        yield make_passed("numa balancing", "automatic NUMA balancing is off")


def _check_memory(facts: Facts) -> Iterator[Finding]:
    total = facts.system.memory_bytes
    of_gpus = sum(gpu.memory_bytes or 0 for gpu in facts.inspection.gpus)
    if total and of_gpus and total < of_gpus and not any(gpu.c2c for gpu in facts.inspection.gpus):
        yield make_info(
            "host memory",
            f"the host has {format_size(total)} for {format_size(of_gpus)} on GPUs",
            "checkpoints and offloading of a whole model's state do not fit",
        )
    elif total:
        yield make_passed("host memory", f"the host has {format_size(total)}")
