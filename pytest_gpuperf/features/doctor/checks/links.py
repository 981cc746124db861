"""NVLink, the fabric behind it, and direct access between GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.finding import (
    Finding,
    make_critical,
    make_info,
    make_passed,
    make_unknown,
    make_warning,
)
from pytest_gpuperf.features.doctor.words import format_gpus, join_unique
from pytest_gpuperf.hardware.device import SWITCH
from pytest_gpuperf.hardware.topology import count_links

_NVLINK_ERRORS = ("NVLink CRC of flits", "NVLink CRC of data", "NVLink replays", "NVLink recoveries")


def check(facts: Facts) -> Iterator[Finding]:
    """All of the module."""
    described = [(index, gpu) for index, gpu in enumerate(facts.inspection.gpus) if not gpu.problem]
    if any(gpu.active_links for _, gpu in described):
        yield from _check_links(facts)
        yield from _check_errors(facts)
    elif len(described) > 1 and any(gpu.links for _, gpu in described):
        yield make_warning(
            "nvlink",
            "the GPUs have NVLinks and none is active",
            "traffic takes PCIe, at a tenth of the speed",
            "look at bridges (PCIe cards), the fabric manager (NVSwitch) and nvidia-smi nvlink -s",
        )
    yield from _check_fabric(facts)
    if len(described) > 1:
        yield from _check_p2p(facts)


def _check_links(facts: Facts) -> Iterator[Finding]:
    seen = facts.inspection.gpus
    counts = [gpu.active_links for gpu in seen]
    usual = Counter(counts).most_common(1)[0][0]
    few = [index for index, count in enumerate(counts) if count < max(counts) and not seen[index].problem]
    bridged = not any(gpu.switched for gpu in seen) and min(counts) == 0
    if few and len({gpu.name for gpu in seen}) == 1 and not bridged:
        yield make_critical(
            "nvlink",
            f"{format_gpus(few)}: {join_unique(counts[index] for index in few)} NVLinks are active, {max(counts)} on "
            "the others",
            "every collective of a world with this GPU is as slow as its links",
            "reset the GPU; if links stay down, have the baseboard looked at (nvidia-smi nvlink -s, Xid 74)",
        )
    elif few:
        yield make_info(
            "nvlink", f"{format_gpus(few)}: fewer NVLinks than other GPUs", "bridges join some pairs and not others"
        )
    else:
        ends = Counter(
            "a switch" if link.end == SWITCH else "GPUs" for gpu in seen for link in gpu.links if link.active
        )
        yield make_passed("nvlink", f"{usual} NVLinks are active on each GPU, to {' and '.join(sorted(ends))}")
    switched = [index for index, gpu in enumerate(seen) if gpu.switched]
    if switched and len(switched) == len(seen):
        inactive = [index for index, gpu in enumerate(seen) if gpu.active_links < len(gpu.links)]
        if inactive and not few:
            down = join_unique(len(seen[index].links) - seen[index].active_links for index in inactive)
            yield make_warning(
                "nvlink",
                f"{format_gpus(inactive)}: {down} NVLinks are inactive on a machine with NVSwitch",
                "each link is a share of the bandwidth; some machines leave some unused by design",
                "compare with another machine of the model: nvidia-smi nvlink -s",
            )


def _check_errors(facts: Facts) -> Iterator[Finding]:
    found = {
        index: {name: gpu.errors[name] for name in _NVLINK_ERRORS if gpu.errors.get(name)}
        for index, gpu in enumerate(facts.inspection.gpus)
    }
    recovering = [index for index, errors in found.items() if errors.get("NVLink recoveries")]
    if recovering:
        yield make_warning(
            "nvlink errors",
            f"{format_gpus(recovering)}: NVLinks were lost and recovered since the driver was loaded",
            "a link that recovers stops all traffic over it, and may not come back the next time (Xid 74)",
            "watch the count under load (nvidia-smi nvlink -e); if it rises, have the GPU or baseboard replaced",
        )
    corrected = [index for index, errors in found.items() if errors and index not in recovering]
    if corrected:
        words = join_unique(f"{count} {name}" for index in corrected for name, count in found[index].items())
        yield make_info(
            "nvlink errors",
            f"{format_gpus(corrected)}: {words}",
            "single replays are normal; a count that rises under load is a bad link",
            "compare two readings: nvidia-smi nvlink -e",
        )
    readable = any(name in gpu.errors for gpu in facts.inspection.gpus for name in _NVLINK_ERRORS)
    if not readable:
        yield make_unknown(
            "nvlink errors", "NVLink's error counts cannot be read", "a bad link may hide", "look at them on the host"
        )
    elif not recovering and not corrected:
        yield make_passed("nvlink errors", "no NVLink error since the driver was loaded")


def _check_fabric(facts: Facts) -> Iterator[Finding]:
    states = {index: gpu.fabric for index, gpu in enumerate(facts.inspection.gpus) if gpu.fabric}
    broken = [index for index, state in states.items() if state in ("failed", "in progress", "not started")]
    if broken:
        yield make_critical(
            "fabric",
            f"{format_gpus(broken)}: registration with the NVLink fabric: "
            f"{join_unique(states[index] for index in broken)}",
            "CUDA fails to initialise (error 802), or GPUs do not reach one another",
            "start the fabric manager of the driver's version: systemctl restart nvidia-fabricmanager",
        )
    elif any(state == "completed" for state in states.values()):
        yield make_passed("fabric", "all GPUs are registered with the NVLink fabric")


def _check_p2p(facts: Facts) -> Iterator[Finding]:
    seen = facts.inspection
    by_nvlink = [pair for pair in seen.pairs if count_links(seen, pair.first, pair.second)]
    known = [pair for pair in seen.pairs if pair.p2p]
    if not known:
        yield make_unknown(
            "p2p",
            "the driver does not report whether GPUs reach one another directly",
            "without direct access traffic goes through the host's memory",
            "look at nvidia-smi topo -p2p r, and at the transport in NCCL's log (NCCL_DEBUG=INFO)",
        )
        return
    closed = [pair for pair in known if any(status != "ok" for kind, status in pair.p2p.items() if kind != "atomics")]
    if not closed:
        yield make_passed("p2p", f"all {len(known)} pairs of GPUs read and write one another's memory")
        return
    why = join_unique(
        status for pair in closed for kind, status in pair.p2p.items() if status != "ok" and kind != "atomics"
    )
    pairs = join_unique(f"{pair.first}-{pair.second}" for pair in closed[:8]) + (" …" if len(closed) > 8 else "")
    what = f"{len(closed)} of {len(known)} pairs of GPUs have no direct access ({pairs}): {why}"
    if any(pair in by_nvlink for pair in closed):
        yield make_critical(
            "p2p",
            what,
            "GPUs that NVLink joins exchange data through the host's memory, at a tenth of the speed",
            "look for a virtual machine, an IOMMU or a registry key (NVreg_RegistryDwords) that forbids it",
        )
    elif facts.isolation.container or any("registry" in status for pair in closed for status in pair.p2p.values()):
        yield make_warning(
            "p2p",
            what,
            "NCCL takes shared memory in place of direct access, at a fraction of PCIe's speed",
            "look for an IOMMU or ACS on the host, and for a registry key of the driver",
        )
    else:
        yield make_info(
            "p2p",
            what,
            "NCCL goes through shared memory there, or a GPU that reaches both; consumer GPUs reach no others",
        )
