"""Whether the driver answers, and whether it shows the GPUs that the machine has."""

from __future__ import annotations

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


def check(facts: Facts) -> Iterator[Finding]:
    """Driver, number and kinds of GPUs."""
    seen, on_bus = facts.inspection, facts.system.pci_gpus
    if seen.problem:
        yield make_critical(
            "driver", seen.problem, "no GPU can be used", "restart the machine if the driver was updated"
        )
        return
    if not seen.gpus:
        yield from _explain_no_gpus(facts)
        return
    yield make_passed("driver", f"driver {seen.driver or 'unknown'}, up to CUDA {seen.cuda or 'unknown'}")
    yield from _find_lost(facts)
    if on_bus is not None and on_bus > len(seen.gpus):
        missing = on_bus - len(seen.gpus)
        what = f"{missing} of the {on_bus} GPUs on the PCI bus are not shown by the driver"
        if facts.isolation.container:
            yield make_info("gpu count", what, "the container was given a part of the machine")
        else:
            yield make_critical(
                "gpu count",
                what,
                "a GPU that fell off the bus stays on the bus's list, and the driver no longer has it",
                "look for Xid 79 in the kernel's log, restart the machine, and have the GPU replaced if it recurs",
            )
    elif on_bus is not None:
        yield make_passed("gpu count", f"the driver shows all {on_bus} GPUs of the PCI bus")
    names = {gpu.name for gpu in seen.gpus if gpu.name}
    if len(names) > 1:
        yield make_warning(
            "gpu kinds",
            f"the machine has different GPUs: {join_unique(sorted(names))}",
            "a collective is as slow as its slowest GPU, and metrics of such a mixture have a key of their own",
            "use GPUs of one kind in a run, through CUDA_VISIBLE_DEVICES",
        )
    else:
        yield make_passed("gpu kinds", f"all GPUs are {join_unique(names) or 'of an unknown kind'}")
    bioses = {gpu.vbios for gpu in seen.gpus if gpu.vbios}
    if len(bioses) > 1 and len(names) == 1:
        yield make_warning(
            "vbios",
            f"the GPUs have different VBIOS versions: {join_unique(sorted(bioses))}",
            "clocks and power limits may differ between equal GPUs",
            "bring all GPUs to the vendor's current firmware",
        )


def _explain_no_gpus(facts: Facts) -> Iterator[Finding]:
    on_bus = facts.system.pci_gpus
    if on_bus and facts.isolation.container:
        yield make_info(
            "driver",
            f"this container sees no GPU; the machine has {on_bus}",
            "ranks run on CPUs with gloo",
            "give the container GPUs, for example with --gpus all or a limit nvidia.com/gpu",
        )
    elif on_bus:
        yield make_critical(
            "driver",
            f"{on_bus} NVIDIA GPUs are on the PCI bus, and no driver answers",
            "no GPU can be used",
            "load the driver (modprobe nvidia), or install it; see whether the module nouveau is loaded in its place",
        )
    else:
        yield make_info("driver", "this machine has no NVIDIA GPU", "ranks run on CPUs with gloo")


def _find_lost(facts: Facts) -> Iterator[Finding]:
    for index, gpu in enumerate(facts.inspection.gpus):
        if gpu.problem:
            yield make_critical(
                "gpu answers",
                f"GPU {index} does not answer: {gpu.problem}",
                "every world that has it fails or hangs",
                "reset it (nvidia-smi --gpu-reset), else restart the machine; have it replaced if it recurs",
            )
        if gpu.recovery not in ("", "none"):
            yield make_critical(
                "gpu recovery",
                f"the driver asks for a recovery of GPU {index}: {gpu.recovery}",
                "the GPU had an error that it cannot leave by itself",
                f"drain the machine, then: {gpu.recovery}",
            )
    silent = [index for index, gpu in enumerate(facts.inspection.gpus) if not gpu.problem and not gpu.recovery]
    if silent:
        yield make_unknown(
            "gpu recovery",
            f"{format_gpus(silent)}: the driver does not report whether a recovery is due",
            "an error may wait for a reset",
            "use a driver of at least R570, or look at nvidia-smi -q",
        )
