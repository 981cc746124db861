"""PCIe links, and how near each GPU is to the cores that serve it."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.finding import Finding, make_info, make_passed, make_unknown, make_warning
from pytest_gpuperf.features.doctor.readers.text import spell
from pytest_gpuperf.features.doctor.words import format_gpus, join_unique
from pytest_gpuperf.hardware.device import ClockReason
from pytest_gpuperf.hardware.inspection import GpuFacts

_REPLAYS = 1000  # since the driver was loaded: NVIDIA's checkers look at rates; a handful are normal


def check(facts: Facts) -> Iterator[Finding]:
    """All of the module."""
    described = [(index, gpu) for index, gpu in enumerate(facts.inspection.gpus) if not gpu.problem]
    if not described:
        return
    yield from _check_width(described)
    yield from _check_generation(described)
    yield from _check_replays(described)
    yield from _check_affinity(facts, described)


def _check_width(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    narrow = [
        index
        for index, gpu in described
        if gpu.pcie.lanes and gpu.pcie.lanes_of_gpu and gpu.pcie.lanes < gpu.pcie.lanes_of_gpu and not gpu.c2c
    ]
    if narrow:
        now = join_unique(
            f"x{gpu.pcie.lanes} of x{gpu.pcie.lanes_of_gpu}" for index, gpu in described if index in narrow
        )
        yield make_warning(
            "pcie width",
            f"{format_gpus(narrow)}: PCIe has {now} lanes",
            "copies to and from the host take that much longer; a lane is lost, or the slot has fewer",
            "reseat the card or its riser, and look at lspci -vv (LnkSta); some slots are narrower by design",
        )
    elif any(gpu.pcie.lanes for _, gpu in described):
        yield make_passed(
            "pcie width", f"all PCIe links have {join_unique(f'x{g.pcie.lanes}' for _, g in described)} lanes"
        )
    else:
        yield make_unknown(
            "pcie width", "no GPU reports its PCIe link", "copies to the host may be slow", "look at lspci on the host"
        )


def _check_generation(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    # An idle GPU lowers its generation: only what slot and GPU agree on, or a busy GPU, says something.
    slots = [
        index
        for index, gpu in described
        if gpu.pcie.generation_of_slot
        and gpu.pcie.generation_of_gpu
        and gpu.pcie.generation_of_slot < gpu.pcie.generation_of_gpu
        and not gpu.c2c
    ]
    busy = [
        index
        for index, gpu in described
        if gpu.pcie.generation
        and gpu.pcie.generation_of_slot
        and gpu.pcie.generation < gpu.pcie.generation_of_slot
        and gpu.slowdowns is not None
        and ClockReason.IDLE.value not in gpu.slowdowns
        and not gpu.c2c
    ]
    if slots:
        ratio = join_unique(
            f"{gpu.pcie.generation_of_slot} of {gpu.pcie.generation_of_gpu}"
            for index, gpu in described
            if index in slots
        )
        yield make_warning(
            "pcie generation",
            f"{format_gpus(slots)}: the slot allows PCIe generation {ratio}",
            "each generation less halves the bandwidth to the host",
            "look at the BIOS setting of the slot and at the riser; an older board has no more",
        )
    if busy:
        ratio = join_unique(
            f"{gpu.pcie.generation} of {gpu.pcie.generation_of_slot}" for i, gpu in described if i in busy
        )
        yield make_warning(
            "pcie generation",
            f"{format_gpus(busy)}: PCIe runs at generation {ratio} on a GPU that works",
            "the link trained down: a bad riser, slot or card",
            "look at lspci -vv (LnkSta), reseat the card",
        )
    if not slots and not busy and any(gpu.pcie.generation_of_slot for _, gpu in described):
        most = join_unique(gpu.pcie.generation_of_slot for _, gpu in described)
        yield make_passed("pcie generation", f"all PCIe links allow generation {most}, the most that the GPUs support")


def _check_replays(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    counts = {index: gpu.errors["PCIe replays"] for index, gpu in described if gpu.errors.get("PCIe replays")}
    many = [index for index, count in counts.items() if count >= _REPLAYS]
    if many:
        yield make_warning(
            "pcie replays",
            f"{format_gpus(many)}: {join_unique(counts[index] for index in many)} PCIe replays since the driver was "
            "loaded",
            "each is a packet sent again; many of them are a bad connection",
            "reseat the card or its riser, and watch the count (nvidia-smi -q)",
        )
    elif counts:
        yield make_info(
            "pcie replays",
            f"{format_gpus(list(counts))}: {join_unique(counts.values())} PCIe replays",
            "few are normal",
        )
    elif any("PCIe replays" in gpu.errors for _, gpu in described):
        yield make_passed("pcie replays", "no PCIe replay since the driver was loaded")


def _check_affinity(facts: Facts, described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    allowed, nodes = set(facts.system.cores_allowed), facts.system.nodes
    near = {index: set(gpu.cores) for index, gpu in described if gpu.cores}
    if not near or not allowed:
        yield make_unknown(
            "affinity",
            "the machine does not report which cores are near which GPU",
            "a rank on the far socket copies to its GPU more slowly",
            "on a virtual machine, have the host pass its NUMA topology through",
        )
        return
    far = [index for index, cores in near.items() if not cores & allowed]
    if far:
        yield make_warning(
            "affinity",
            f"{format_gpus(far)}: none of the cores {spell(facts.system.cores_allowed)} that this process may use is "
            f"on the GPU's NUMA node (cores {join_unique(spell(tuple(near[index])) for index in far)})",
            "copies between host and GPU cross the sockets",
            "give the process cores of that node: numactl --cpunodebind, or the pod's topology manager",
        )
    elif len(nodes) > 1 and len({frozenset(cores) for cores in near.values()}) == 1 and len(near) > 2:
        yield make_info(
            "affinity",
            f"all GPUs report the same cores on a machine of {len(nodes)} NUMA nodes",
            "all are on one socket, or a virtual machine hides where they are",
        )
    else:
        yield make_passed("affinity", "this process may use cores near each GPU")
