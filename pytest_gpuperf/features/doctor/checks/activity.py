"""Checks of who else uses the GPUs now."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.finding import Finding, passed, unknown, warning
from pytest_gpuperf.features.doctor.words import bytes_of, gpus, several

_MUCH = 0.05  # of a GPU's memory: the driver alone takes less than 1 %


_BUSY = 0.2  # of the time: a display, or a process that begins, takes less
_TRAFFIC = 1e9  # bytes/s over PCIe: an idle GPU reports some kilobytes


def check(facts: Facts) -> Iterator[Finding]:
    """Foreign processes, memory that nobody visible holds, and work while this process does none."""
    yield from _processes(facts)
    yield from _work(facts)


def _work(facts: Facts) -> Iterator[Finding]:
    """Kernels that run, and bytes that cross PCIe, though this process has none there."""
    known = {process.pid: process for process in facts.processes}
    found = list(enumerate(facts.inspection.gpus))
    idle = [
        (index, gpu) for index, gpu in found if not any(known[pid].ours for pid in gpu.processes or () if pid in known)
    ]
    for index, gpu in idle:
        who = several(f"{pid} {known[pid].command}" if pid in known else str(pid) for pid in gpu.processes or ())
        by = f" by {who}" if who else ""
        traffic = facts.pcie_traffic.get(gpu.uuid, 0.0)
        if traffic > _TRAFFIC:  # copies keep a GPU busy in the driver's eyes, too: nothing else need run there
            yield warning(
                "pcie traffic",
                f"{gpus([index])}: {traffic / 1e9:.3g} GB/s cross its PCIe link{by}, and none is of this process",
                "copies between host and GPU share the link with them",
                "wait until they have ended, or choose other GPUs with CUDA_VISIBLE_DEVICES",
            )
        elif (gpu.busy or 0.0) > _BUSY:
            yield warning(
                "foreign load",
                f"{gpus([index])}: kernels run {gpu.busy or 0:.0%} of the time{by}, and none is of this process",
                "products and memory are shared with them",
                "wait until they have ended, or choose other GPUs with CUDA_VISIBLE_DEVICES",
            )


def _processes(facts: Facts) -> Iterator[Finding]:
    described = [(index, gpu) for index, gpu in enumerate(facts.inspection.gpus) if not gpu.problem]
    if not described:
        return
    known = {process.pid: process for process in facts.processes}
    foreign = {
        index: [pid for pid in gpu.processes or () if pid not in known or not known[pid].ours]
        for index, gpu in described
    }
    busy = [index for index, pids in foreign.items() if pids]
    if busy:
        pids = dict.fromkeys(pid for index in busy for pid in foreign[index])
        who = several(f"{pid} {known[pid].command}" if pid in known else f"{pid} (not visible here)" for pid in pids)
        yield warning(
            "foreign processes",
            f"{gpus(busy)}: other processes compute on them: {who}",
            "they take memory, clocks and bandwidth: metrics are of both together",
            "wait until they have ended, or choose other GPUs with CUDA_VISIBLE_DEVICES",
        )
    full = [
        index
        for index, gpu in described
        if index not in busy
        and gpu.memory_bytes
        and (gpu.used_bytes or 0) > _MUCH * gpu.memory_bytes
        and not gpu.processes
    ]
    if full:
        used = several(bytes_of(gpu.used_bytes or 0) for index, gpu in described if index in full)
        yield warning(
            "foreign memory",
            f"{gpus(full)}: {used} in use, and no process that is visible here holds it",
            "a process in another container, or one that did not end, works there",
            "look at nvidia-smi on the host",
        )
    if not busy and not full:
        if any(gpu.processes is not None for _, gpu in described):
            yield passed("foreign processes", "no other process computes on the GPUs")
        else:
            yield unknown(
                "foreign processes",
                "the driver does not list the processes of the GPUs",
                "another job may share them",
                "look at nvidia-smi on the host",
            )
