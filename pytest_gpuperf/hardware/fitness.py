"""The gates: whether a machine was fit for a measurement, by what was observed of its GPUs meanwhile."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_gpuperf.figures.conditions import Conditions, Gate, Tripped
from pytest_gpuperf.hardware.device import ClockReason, Observation, Xid

# nvbench discards a sample below this share of the clock that it expects (measure_cold.cu, throttle detection).
LEAST_CLOCK = 0.75

LEAST_LOOKS = 3  # at a busy GPU, before its clocks are compared

LEAST_FREE_BYTES = 256 * 1024**2  # for the work space of libraries; with less they fall back to slower algorithms

# A GPU at its power limit under a GEMM is as it should be, and so is an idle one.
SLOWDOWNS: Mapping[ClockReason, Gate] = {
    ClockReason.HARDWARE_SLOWDOWN: Gate.HARDWARE_SLOWDOWN,
    ClockReason.SOFTWARE_THERMAL_SLOWDOWN: Gate.SOFTWARE_THERMAL_SLOWDOWN,
    ClockReason.HARDWARE_THERMAL_SLOWDOWN: Gate.HARDWARE_THERMAL_SLOWDOWN,
    ClockReason.POWER_BRAKE: Gate.POWER_BRAKE,
}


@dataclass(frozen=True, slots=True)
class AtStart:
    """What a run knows of its GPUs before it measures."""

    nvlinks: Mapping[str, int]
    """Active NVLinks of each GPU when the run began."""
    processes: Collection[int]
    """Process ids of the ranks."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Name of the node of each GPU; empty without a cluster."""


def make_conditions(seen: Sequence[Observation], at_start: AtStart, xids: Sequence[Xid] = ()) -> Conditions:
    """Passes observations through all gates.

    Gates: a thermal or hardware slowdown; a process that is no rank; fewer NVLinks than when the run began;
    uncorrected memory errors; an error that the driver reported; too little free memory; an SM clock that fell below
    ``LEAST_CLOCK`` of the highest one seen while the GPU was busy and not at its power limit.
    """
    tripped: list[Tripped] = []
    for uuid in dict.fromkeys(observation.uuid for observation in seen):
        tripped += _find_tripped(uuid, [observation for observation in seen if observation.uuid == uuid], at_start)
    tripped += [Tripped(xid.uuid, Gate.XID, xid.number) for xid in xids]
    looks = _drop_first_looks(seen)
    busy = [look for look in looks if not _is_held_back_by(look, {ClockReason.IDLE})]
    return Conditions(
        tuple(replace(one, node=at_start.nodes.get(one.gpu, "")) for one in tripped),
        power_capped=any(_is_held_back_by(look, {ClockReason.POWER_CAP}) for look in looks),
        sm_clock=_median(look.sm_hertz for look in busy),
        watts=_median(look.watts for look in busy),
        kelvin=_median(look.kelvin for look in busy),
    )


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _drop_first_looks(seen: Sequence[Observation]) -> list[Observation]:
    # Of each GPU the first look is at what was before, a test at the power limit perhaps.
    looked: set[str] = set()
    found = []
    for observation in seen:
        if observation.uuid in looked:
            found.append(observation)
        looked.add(observation.uuid)
    return found


def _find_tripped(uuid: str, seen: Sequence[Observation], at_start: AtStart) -> list[Tripped]:
    tripped = [
        Tripped(uuid, gate) for reason, gate in SLOWDOWNS.items() if any(_is_held_back_by(o, {reason}) for o in seen)
    ]
    foreign = max((_count_foreign(observation, at_start.processes) for observation in seen), default=0)
    if foreign:
        tripped.append(Tripped(uuid, Gate.OTHER_PROCESSES, foreign, 0))
    links = [observation.nvlinks for observation in seen if observation.nvlinks is not None]
    if links and min(links) < at_start.nvlinks.get(uuid, 0):
        tripped.append(Tripped(uuid, Gate.LOST_NVLINKS, min(links), at_start.nvlinks[uuid]))
    errors = [observation.memory_errors for observation in seen if observation.memory_errors is not None]
    if errors and errors[-1] > errors[0]:
        tripped.append(Tripped(uuid, Gate.MEMORY_ERRORS, errors[-1] - errors[0], 0))
    free = min(observation.free_bytes for observation in seen)
    if free < LEAST_FREE_BYTES:
        tripped.append(Tripped(uuid, Gate.LITTLE_MEMORY, free, LEAST_FREE_BYTES, "B"))
    # An idle GPU's clocks are low, and one at its power limit trades them for work.
    busy = _list_clocks(seen, {ClockReason.IDLE, ClockReason.POWER_CAP})
    if len(busy) >= LEAST_LOOKS and min(busy) < LEAST_CLOCK * max(busy):
        tripped.append(Tripped(uuid, Gate.SLOW_CLOCK, min(busy), max(busy), "Hz"))
    return tripped


def _list_clocks(seen: Sequence[Observation], unless: Collection[ClockReason]) -> list[float]:
    return [look.sm_hertz for look in seen if look.sm_hertz is not None and not _is_held_back_by(look, unless)]


def _is_held_back_by(look: Observation, reasons: Collection[ClockReason]) -> bool:
    return look.reasons is not None and not look.reasons.isdisjoint(reasons)


def _count_foreign(observation: Observation, ranks: Collection[int]) -> int:
    """Processes that are no rank; a container's own process ids are not the driver's, and then only a second one is."""
    if observation.processes is None:
        return 0
    others = observation.processes - frozenset(ranks)
    if len(others) < len(observation.processes):
        return len(others)
    return max(0, len(others) - 1)
