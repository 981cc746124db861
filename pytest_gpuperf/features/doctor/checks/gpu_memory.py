"""Errors of the GPUs' memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.finding import (
    Finding,
    make_critical,
    make_info,
    make_passed,
    make_unknown,
    make_warning,
)
from pytest_gpuperf.features.doctor.words import format_gpus
from pytest_gpuperf.hardware.inspection import GpuFacts

_DATA_CENTER = ("A100", "A800", "H100", "H200", "H800", "GH200", "B100", "B200", "GB200", "B300", "GB300", "V100")


def check(facts: Facts) -> Iterator[Finding]:
    """ECC, remapped rows, retired pages."""
    described = [(index, gpu) for index, gpu in enumerate(facts.inspection.gpus) if not gpu.problem]
    if not described:
        return
    yield from _check_ecc(described)
    bad = list(_find_damage(described))
    yield from bad
    known = any(gpu.rows is not None or gpu.pages_pending is not None for _, gpu in described)
    if not bad and known:
        yield make_passed("memory errors", "no uncorrected memory error since the driver was loaded, no repair is due")


def _list_matching(described: list[tuple[int, GpuFacts]], holds: Callable[[GpuFacts], object]) -> list[int]:
    return [index for index, gpu in described if holds(gpu)]


def _check_ecc(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    off = _list_matching(described, lambda gpu: gpu.ecc is False and any(name in gpu.name for name in _DATA_CENTER))
    if off:
        yield make_warning(
            "ecc",
            f"{format_gpus(off)}: ECC is off",
            "a flipped bit gives wrong results and no error",
            "turn it on: nvidia-smi -e 1, then reset the GPU",
        )
    pending = _list_matching(described, lambda gpu: gpu.ecc is not None and gpu.ecc_pending not in (None, gpu.ecc))
    if pending:
        yield make_warning(
            "ecc",
            f"{format_gpus(pending)}: ECC changes with the next reset",
            "memory size and bandwidth change with it, so metrics before and after cannot be compared",
            "reset the GPU now: nvidia-smi --gpu-reset",
        )
    if not off and not pending:
        told = _list_matching(described, lambda gpu: gpu.ecc is not None)
        if told:
            on = _list_matching(described, lambda gpu: gpu.ecc)
            yield make_passed("ecc", f"ECC is on on {len(on)} of {len(told)} GPUs that report it")
        else:
            yield make_info("ecc", "no GPU reports ECC", "consumer GPUs have none")


def _find_damage(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    failed = _list_matching(described, lambda gpu: gpu.rows is not None and gpu.rows.failed)
    if failed:
        yield make_critical(
            "row remapping",
            f"{format_gpus(failed)}: a memory row failed and no spare row was left",
            "results may be wrong, and jobs end with Xid 64",
            "take the GPU out of service and have it replaced",
        )
    pending = _list_matching(described, lambda gpu: (gpu.rows is not None and gpu.rows.pending) or gpu.pages_pending)
    if pending:
        yield make_critical(
            "row remapping",
            f"{format_gpus(pending)}: a memory row waits for its replacement",
            "the row with the error is used until the GPU is reset",
            "drain the machine and reset the GPU: nvidia-smi --gpu-reset",
        )
    for index, gpu in described:
        count = gpu.errors.get("ECC uncorrected", 0)
        if count:
            yield make_critical(
                "memory errors",
                f"GPU {index}: {count} uncorrected memory errors since the driver was loaded",
                "each ends the processes on the GPU, or has given a wrong result",
                "reset the GPU, run dcgmi diag -r 3, and have it replaced if errors recur",
            )
    corrected = _list_matching(described, lambda gpu: gpu.errors.get("ECC corrected", 0) > 0)
    if corrected:
        yield make_info(
            "memory errors", f"{format_gpus(corrected)}: corrected memory errors", "ECC did its work; watch the count"
        )
    old = _list_matching(
        described, lambda gpu: (gpu.lifetime_uncorrected or 0) > 0 and not gpu.errors.get("ECC uncorrected")
    )
    if old:
        yield make_info("memory errors", f"{format_gpus(old)}: uncorrected memory errors earlier in the GPU's life")
    silent = _list_matching(described, lambda gpu: gpu.ecc and "ECC uncorrected" not in gpu.errors)
    if silent:
        yield make_unknown(
            "memory errors",
            f"{format_gpus(silent)}: ECC is on and its counts cannot be read",
            "errors may have occurred",
            "run this as a user who may read them, or on the host",
        )
