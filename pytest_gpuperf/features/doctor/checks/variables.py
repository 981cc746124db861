"""Variables that are misspelled, that nothing reads any more, and those that change what NCCL and CUDA do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_gpuperf.features.doctor import names
from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.finding import (
    Finding,
    make_critical,
    make_info,
    make_passed,
    make_unknown,
    make_warning,
)
from pytest_gpuperf.features.doctor.words import join_unique

_DIRECT = "direct access between GPUs"

# What a variable takes away, and the values that leave all as it is. NCCL's user guide, "Environment Variables".
_COSTLY: Mapping[str, tuple[tuple[str, ...], str]] = {
    "NCCL_P2P_DISABLE": (("0",), f"{_DIRECT} is off: all traffic goes through the host's memory"),
    "NCCL_SHM_DISABLE": (("0",), "shared memory is off: GPUs without direct access use the network"),
    "NCCL_NVLS_ENABLE": (("1", "2"), "the switch neither adds nor multicasts: all_reduce of 5 and more GPUs is slower"),
    "NCCL_CUMEM_ENABLE": (("1", "-2"), "no cuMem allocations: no NVLS, no symmetric memory in NCCL"),
    "NCCL_IB_DISABLE": (("0",), "InfiniBand and RoCE are off: hosts talk over TCP"),
    "NCCL_NET_GDR_LEVEL": (("SYS",), "GPUDirect RDMA is limited by distance"),
    "NCCL_MAX_NCHANNELS": ((), "NCCL uses no more channels than that: each is a share of the bandwidth"),
    "NCCL_MAX_CTAS": ((), "NCCL uses no more thread blocks than that: each is a share of the bandwidth"),
    "NCCL_MIN_NCHANNELS": ((), "NCCL takes SMs from compute for at least so many channels"),
    "NCCL_MAX_P2P_NCHANNELS": ((), "sends, receives and all_to_all use no more channels than that"),
    "NCCL_NTHREADS": ((), "NCCL's thread blocks have another size than NCCL would choose"),
    "NCCL_ALGO": ((), "NCCL cannot choose the algorithm by size any more"),
    "NCCL_PROTO": ((), "NCCL cannot choose the protocol by size any more"),
    "NCCL_BUFFSIZE": (("4194304",), "NCCL's buffers have another size than it was tuned for"),
    "NCCL_P2P_LEVEL": ((), f"{_DIRECT} is allowed up to a distance that is not NCCL's own"),
    "NCCL_NET": ((), "NCCL takes this network whatever else is there"),
    "NCCL_CHECK_POINTERS": (("0",), "NCCL checks each pointer, which costs time in every call"),
    "NCCL_GRAPH_FILE": ((), "NCCL takes rings and trees from a file in place of its search"),
    "NCCL_TOPO_FILE": ((), "NCCL takes the topology from a file; a cloud's image sets it for its virtual machines"),
    "NCCL_LAUNCH_ORDER_IMPLICIT": (("0",), "NCCL orders its kernels by their launch"),
    "CUDA_LAUNCH_BLOCKING": (("0",), "each kernel is waited for: nothing overlaps"),
    "CUDA_DEVICE_MAX_CONNECTIONS": ((), "streams share so many hardware queues; 1 orders kernels and prevents overlap"),
    "TORCH_NCCL_BLOCKING_WAIT": (("0",), "waiting for a collective blocks the host"),
    "TORCH_NCCL_NAN_CHECK": (("0",), "each collective first looks for NaN in its input"),
    "TORCH_NCCL_ENABLE_TIMING": (("0",), "each collective records two more events"),
}
_SEVERE = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "CUDA_LAUNCH_BLOCKING")
_VERBOSE = ("INFO", "TRACE")


def check(facts: Facts) -> Iterator[Finding]:
    """All of the module."""
    settings, before = facts.settings, 0
    for finding in (
        *_find_unreadable(facts),
        *_find_misspelled(facts),
        *_find_costly(facts),
        *_check_visible(facts),
        *_find_loud(settings),
    ):
        before += 1
        yield finding
    if not before:
        yield make_passed("variables", "no variable changes what NCCL or CUDA would do by themselves")


def describe_effect(name: str, value: str) -> str:
    """What a variable with this value takes away; empty if nothing."""
    harmless, effect = _COSTLY.get(name, ((), ""))
    return "" if value in harmless or not value else effect


def describe_origin(facts: Facts, name: str) -> str:
    """Names the configuration file that sets a variable; empty if the environment does."""
    if name in facts.variables:
        return ""
    files = [file for file, variables in facts.configured.items() if name in variables]
    return f" (in {files[-1]})" if files else ""


def _find_unreadable(facts: Facts) -> Iterator[Finding]:
    for file, why in facts.unreadable.items():
        yield make_unknown(
            "variables",
            f"NCCL's configuration file {file} cannot be read: {why}",
            "NCCL may read settings there that nothing here checks, or hang as it opens the file",
            "make it a text file that you may read, remove it, or name another one with NCCL_CONF_FILE",
        )


def _find_misspelled(facts: Facts) -> Iterator[Finding]:
    for name in sorted(facts.settings):
        where = describe_origin(facts, name)
        if name in names.RETIRED:
            yield make_warning(
                "variable names",
                f"{name}{where} is an old name",
                "newer versions ignore it, or read it for old scripts alone",
                f"use {names.RETIRED[name]}",
            )
        elif not names.exists(name):
            near = names.find_nearest(name)
            yield make_warning(
                "variable names",
                f"nothing reads {name}{where}" + (f"; the nearest real name is {near}" if near else ""),
                "what it was meant to change is as it was",
                f"rename it to {near}, or unset it" if near else "unset it",
            )


def _find_costly(facts: Facts) -> Iterator[Finding]:
    for name, value in sorted(facts.settings.items()):
        effect = describe_effect(name, value)
        if not effect:
            continue
        severity = make_warning
        severe = name in _SEVERE and len(facts.inspection.gpus) > 1
        if severe and (name != "NCCL_P2P_DISABLE" or _has_p2p(facts)):
            severity = make_critical
        yield severity(
            "variables",
            f"{name}={value}{describe_origin(facts, name)}: {effect}",
            "metrics are of this setting, and not of the machine",
            f"unset {name}, unless you measured that it helps here or the operator of the machine set it",
        )


def _has_p2p(facts: Facts) -> bool:
    return any(pair.p2p.get("read") == "ok" for pair in facts.inspection.pairs)


def _check_visible(facts: Facts) -> Iterator[Finding]:
    visible = facts.settings.get("CUDA_VISIBLE_DEVICES")
    gpus = facts.inspection.gpus
    if visible is None or not gpus:
        return
    chosen = [one.strip() for one in visible.split(",") if one.strip()]
    numbers = [int(one) for one in chosen if one.lstrip("-").isdigit()]
    if not chosen or any(number < 0 for number in numbers):
        yield make_warning(
            "variables",
            f"CUDA_VISIBLE_DEVICES={visible!r} hides all GPUs",
            "ranks run on CPUs with gloo",
            "unset it",
        )
    elif any(number >= len(gpus) for number in numbers):
        wrong = next(number for number in numbers if number >= len(gpus))
        yield make_critical(
            "variables",
            f"CUDA_VISIBLE_DEVICES={visible!r} names GPU {wrong}, and the machine has {len(gpus)}",
            "CUDA shows the GPUs before the first wrong entry and no others",
            "correct or unset it",
        )
    elif len({gpu.name for gpu in gpus}) > 1 and facts.settings.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and numbers:
        yield make_warning(
            "variables",
            f"CUDA_VISIBLE_DEVICES={visible!r} numbers different GPUs, and CUDA_DEVICE_ORDER is not PCI_BUS_ID",
            "CUDA puts the fastest GPU first: its numbers are not those of nvidia-smi",
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID",
        )


def _find_loud(settings: Mapping[str, str]) -> Iterator[Finding]:
    loud = [name for name in ("NCCL_DEBUG",) if settings.get(name, "").upper() in _VERBOSE]
    if loud:
        where = settings.get("NCCL_DEBUG_FILE", "standard output")
        yield make_info(
            "variables", f"{join_unique(f'{name}={settings[name]}' for name in loud)}: NCCL logs to {where}"
        )
