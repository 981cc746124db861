"""How the GPUs are set up: MIG, persistence, power, clocks, compute mode, temperature, throttling now."""

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
from pytest_gpuperf.hardware.device import ClockReason
from pytest_gpuperf.hardware.inspection import GpuFacts

_KELVIN = 273.15
_NEAR_SLOWDOWN = 5  # kelvin below the temperature at which the hardware slows down
_NEAR_CLOCK = 0.98  # of the fastest clock: application clocks come in steps of 15 MHz
# ClockReason.POWER_CAP is how a GPU works under load, and an idle one is no fault.
_FAULTS = (
    ClockReason.HARDWARE_SLOWDOWN,
    ClockReason.HARDWARE_THERMAL_SLOWDOWN,
    ClockReason.SOFTWARE_THERMAL_SLOWDOWN,
    ClockReason.POWER_BRAKE,
)


def check(facts: Facts) -> Iterator[Finding]:
    """All of the module."""
    described = [(index, gpu) for index, gpu in enumerate(facts.inspection.gpus) if not gpu.problem]
    if not described:
        return
    yield from _check_mig(described)
    yield from _check_persistence(described, hidden=bool(facts.isolation.container))
    yield from _check_power(described)
    yield from _check_clocks(described)
    yield from _compute(described)
    yield from _check_throttling(described)
    yield from _check_heat(described)


def _check_mig(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    split = [index for index, gpu in described if gpu.mig]
    if split:
        slices = sum(gpu.mig_slices or 0 for _, gpu in described)
        yield make_critical(
            "mig",
            f"{format_gpus(split)}: split into MIG slices ({slices} in all)",
            "NCCL needs whole GPUs: slices reach one another neither by NVLink nor by PCIe",
            "turn MIG off: nvidia-smi -mig 0, or leave the GPU out of CUDA_VISIBLE_DEVICES",
        )
    elif any(gpu.mig is not None for _, gpu in described):
        yield make_passed("mig", "no GPU is split into MIG slices")


def _check_persistence(described: list[tuple[int, GpuFacts]], *, hidden: bool) -> Iterator[Finding]:
    off = [index for index, gpu in described if gpu.persistence is False]
    if off:
        yield make_warning(
            "persistence",
            f"{format_gpus(off)}: persistence mode is off",
            "the driver unloads a GPU's state when its last process ends: the next start takes seconds, and "
            "settings of clocks and power are lost",
            "start nvidia-persistenced" + (" on the host" if hidden else "") + ", or: nvidia-smi -pm 1",
        )
    elif any(gpu.persistence for _, gpu in described):
        yield make_passed("persistence", "persistence mode is on")


def _check_power(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    limits = {index: gpu.power_limit_watts for index, gpu in described if gpu.power_limit_watts is not None}
    lowered = [
        index
        for index, gpu in described
        if gpu.power_limit_watts is not None
        and gpu.power_default_watts is not None
        and gpu.power_limit_watts < gpu.power_default_watts - 1
    ]
    if lowered:
        watts = join_unique(f"{limits[index]:.0f} W" for index in lowered)
        default = join_unique(f"{gpu.power_default_watts:.0f} W" for index, gpu in described if index in lowered)
        yield make_warning(
            "power limit",
            f"{format_gpus(lowered)}: the power limit is {watts}, the default is {default}",
            "matrix products are limited by power: less of it is a lower clock",
            "raise it: nvidia-smi -pl WATTS; if it is meant, baselines of another limit do not apply",
        )
    elif len(set(limits.values())) > 1 and len({gpu.name for _, gpu in described}) == 1:
        yield make_warning(
            "power limit",
            f"equal GPUs have different power limits: {join_unique(f'{watts:.0f} W' for watts in limits.values())}",
            "the slowest GPU sets the pace of every collective",
            "set one limit on all: nvidia-smi -pl WATTS",
        )
    elif limits:
        yield make_passed("power limit", f"power limit {join_unique(f'{watts:.0f} W' for watts in limits.values())}")
    else:
        yield make_unknown("power limit", "no GPU reports its power limit", "it bounds matrix products", "ask the host")


def _check_clocks(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    fixed = [
        index
        for index, gpu in described
        if gpu.sm_set_hertz and gpu.sm_most_hertz and gpu.sm_set_hertz < _NEAR_CLOCK * gpu.sm_most_hertz
    ]
    if fixed:
        clocks = join_unique(f"{(gpu.sm_set_hertz or 0) / 1e6:.0f} MHz" for index, gpu in described if index in fixed)
        most = join_unique(f"{(gpu.sm_most_hertz or 0) / 1e6:.0f} MHz" for index, gpu in described if index in fixed)
        yield make_info(
            "clocks",
            f"{format_gpus(fixed)}: the application clock is {clocks}, the fastest {most}",
            "the default of some GPUs; with auto boost it does not bind",
        )
    memory = [
        index
        for index, gpu in described
        if gpu.memory_hertz
        and gpu.memory_most_hertz
        and gpu.memory_hertz < _NEAR_CLOCK * gpu.memory_most_hertz
        and not (gpu.slowdowns is None or ClockReason.IDLE.value in gpu.slowdowns)
    ]
    if memory:
        yield make_warning(
            "clocks",
            f"{format_gpus(memory)}: the memory clock is below its maximum on a GPU that works",
            "memory bandwidth falls with it",
            "reset locked clocks: nvidia-smi -rmc -rgc",
        )
    elif not fixed:
        yield make_passed("clocks", "no clock is set below its maximum")


def _compute(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    closed = [index for index, gpu in described if gpu.compute_mode == "prohibited"]
    if closed:
        yield make_critical(
            "compute mode",
            f"{format_gpus(closed)}: the compute mode prohibits CUDA contexts",
            "no program can run on them",
            "nvidia-smi -c DEFAULT",
        )
    single = [index for index, gpu in described if gpu.compute_mode.startswith("exclusive")]
    if single:
        yield make_warning(
            "compute mode",
            f"{format_gpus(single)}: the compute mode admits one process",
            "ranks of a second world on the same GPU fail to start",
            "nvidia-smi -c DEFAULT",
        )


def _check_throttling(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    faults = {reason.value for reason in _FAULTS}
    held = {index: sorted(faults & set(gpu.slowdowns or ())) for index, gpu in described}
    slow = [index for index, reasons in held.items() if reasons]
    if slow:
        yield make_critical(
            "throttling",
            f"{format_gpus(slow)}: clocks are held back now: {join_unique(r for index in slow for r in held[index])}",
            "the GPU runs at a fraction of its clock, and every world with it",
            "look at cooling and power supply (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER)",
        )
    elif any(gpu.slowdowns is not None for _, gpu in described):
        yield make_passed("throttling", "no GPU is slowed down by heat or by its power supply")
    else:
        yield make_unknown(
            "throttling",
            "no GPU reports why its clocks are held back",
            "a slow GPU looks like slow code",
            "update the driver, or ask the host",
        )
    capped = [index for index, gpu in described if ClockReason.POWER_CAP.value in (gpu.slowdowns or ())]
    if capped:
        yield make_info("throttling", f"{format_gpus(capped)}: at the power limit now", "so GPUs are under load")


def _check_heat(described: list[tuple[int, GpuFacts]]) -> Iterator[Finding]:
    hot = {
        index: gpu.kelvin - _KELVIN
        for index, gpu in described
        if gpu.kelvin is not None
        and gpu.slowdown_kelvin is not None
        and gpu.kelvin > gpu.slowdown_kelvin - _NEAR_SLOWDOWN
    }
    if hot:
        yield make_warning(
            "temperature",
            f"{format_gpus(list(hot))}: {join_unique(f'{celsius:.0f} °C' for celsius in hot.values())}, about to slow "
            "down",
            "clocks fall when the limit is reached",
            "look at fans, air flow or coolant",
        )
    elif any(gpu.kelvin is not None for _, gpu in described):
        hottest = max(gpu.kelvin for _, gpu in described if gpu.kelvin is not None) - _KELVIN
        yield make_passed("temperature", f"the hottest GPU has {hottest:.0f} °C")
