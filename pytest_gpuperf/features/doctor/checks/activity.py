"""Checks of who else uses the GPUs now."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.finding import Finding, make_passed, make_unknown, make_warning
from pytest_gpuperf.features.doctor.words import format_gpus, format_size, join_unique

_MUCH = 0.05  # of a GPU's memory: the driver alone takes less than 1 %


_BUSY = 0.2  # of the time: a display, or a process that begins, takes less
_TRAFFIC = 1e9  # bytes/s over PCIe: an idle GPU reports some kilobytes


def check(facts: Facts) -> Iterator[Finding]:
    """Foreign processes, memory that nobody visible holds, and work while this process does none."""
    yield from _check_processes(facts)
    yield from _check_work(facts)


def _check_work(facts: Facts) -> Iterator[Finding]:
    """Kernels that run, and bytes that cross PCIe, though this process has none there."""
    known = {process.pid: process for process in facts.processes}
    found = list(enumerate(facts.inspection.gpus))
    idle = [
        (index, gpu) for index, gpu in found if not any(known[pid].ours for pid in gpu.processes or () if pid in known)
    ]
    for index, gpu in idle:
        who = join_unique(f"{pid} {known[pid].command}" if pid in known else str(pid) for pid in gpu.processes or ())
        by = f" by {who}" if who else ""
        traffic = facts.pcie_traffic.get(gpu.uuid, 0.0)
        if traffic > _TRAFFIC:  # copies keep a GPU busy in the driver's eyes, too: nothing else need run there
            yield make_warning(
                "pcie traffic",
                f"{format_gpus([index])}: {traffic / 1e9:.3g} GB/s cross its PCIe link{by}, and none is of this "
                "process",
                "copies between host and GPU share the link with them",
                "wait until they have ended, or choose other GPUs with CUDA_VISIBLE_DEVICES",
            )
        elif (gpu.busy or 0.0) > _BUSY:
            yield make_warning(
                "foreign load",
                f"{format_gpus([index])}: kernels run {gpu.busy or 0:.0%} of the time{by}, and none is of this process",
                "products and memory are shared with them",
                "wait until they have ended, or choose other GPUs with CUDA_VISIBLE_DEVICES",
            )


def _check_processes(facts: Facts) -> Iterator[Finding]:
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
        who = join_unique(
            f"{pid} {known[pid].command}" if pid in known else f"{pid} (not visible here)" for pid in pids
        )
        yield make_warning(
            "foreign processes",
            f"{format_gpus(busy)}: other processes compute on them: {who}",
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
        used = join_unique(format_size(gpu.used_bytes or 0) for index, gpu in described if index in full)
        yield make_warning(
            "foreign memory",
            f"{format_gpus(full)}: {used} in use, and no process that is visible here holds it",
            "a process in another container, or one that did not end, works there",
            "look at nvidia-smi on the host",
        )
    if not busy and not full:
        if any(gpu.processes is not None for _, gpu in described):
            yield make_passed("foreign processes", "no other process computes on the GPUs")
        else:
            yield make_unknown(
                "foreign processes",
                "the driver does not list the processes of the GPUs",
                "another job may share them",
                "look at nvidia-smi on the host",
            )
