"""How an administrator has set up GPUs and host, as texts by name that a record keeps and a later run compares."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection

from pytest_gpuperf.hardware.inspection import GpuFacts, Inspection
from pytest_gpuperf.hardware.numa import Nodes, find_node


def describe_setup(seen: Inspection, uuids: Collection[str], nodes: Nodes) -> dict[str, str]:
    """Return what of the GPUs' setup may change how fast they are, and no metric's test can change.

    ``ecc``, ``mig`` and ``persistence`` are ``on`` or ``off``. ``pcie`` is ``gen 5 x16``: the generation of the slot
    and the lanes in use. ``application clock`` is in MHz. ``gpu numa nodes`` are the numbers of the nodes that the GPUs
    are at. GPUs that differ are told apart by commas, in their order.

    Args:
        seen: All GPUs of the machine.
        uuids: Those of the run.
        nodes: The host's NUMA nodes.

    Returns:
        Texts by name; what any of the GPUs does not tell is missing.
    """
    gpus = [gpu for gpu in seen.gpus if gpu.uuid in uuids]
    asked: dict[str, Callable[[GpuFacts], str]] = {
        "application clock": lambda gpu: "" if gpu.sm_set_hertz is None else f"{gpu.sm_set_hertz / 1e6:.0f} MHz",
        "ecc": lambda gpu: _format_switch(gpu.ecc),
        "gpu numa nodes": lambda gpu: find_node(gpu.cores, nodes),
        "mig": lambda gpu: _format_switch(gpu.mig),
        "pcie": _format_pcie,
        "persistence": lambda gpu: _format_switch(gpu.persistence),
    }
    found = {}
    for name, ask in asked.items():
        told = [ask(gpu) for gpu in gpus]
        if told and all(told):
            found[name] = told[0] if len(set(told)) == 1 else ", ".join(told)
    return found


def read_host_setup() -> dict[str, str]:
    """The kernel, and the CPU cores that this process may use, which limit its ranks too."""
    return {"kernel": platform.release(), "cpu cores": str(len(os.sched_getaffinity(0)))}


def _format_switch(value: bool | None) -> str:
    return {True: "on", False: "off", None: ""}[value]


def _format_pcie(gpu: GpuFacts) -> str:
    generation, lanes = gpu.pcie.generation_of_slot, gpu.pcie.lanes
    return "" if generation is None or lanes is None else f"gen {generation} x{lanes}"
