"""Whether a machine was fit for a measurement, by what was observed of its GPUs meanwhile."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.hardware.observation import IDLE, POWER_CAP, SLOWDOWNS, Observation
from pytest_gpuperf.hardware.xids import Xid

# nvbench discards a sample below this share of the clock that it expects (measure_cold.cu, throttle detection).
LEAST_CLOCK = 0.75

LEAST_LOOKS = 3  # at a busy GPU, before its clocks are compared

LEAST_FREE_BYTES = 256 * 1024**2  # for the work space of libraries; with less they fall back to slower algorithms


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run knows of its GPUs."""

    nvlinks: Mapping[str, int]
    """Active NVLinks of each GPU when the run began."""
    processes: Collection[int]
    """Process ids of the ranks."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a measurement was made under."""

    tripped: tuple[str, ...]
    """The gates that make it invalid, in words; empty if it is valid."""
    power_capped: bool
    """Whether a GPU was at its power limit, which is normal under a GEMM."""
    sm_clock: float | None = None
    """Median over the looks at busy GPUs, Hz; None if no GPU told."""


FIT = Conditions((), power_capped=False)
"""Nothing was observed that would make a measurement invalid."""


def conditions(seen: Sequence[Observation], expected: Expected, xids: Sequence[Xid] = ()) -> Conditions:
    """Passes observations through all gates.

    Gates: a thermal or hardware slowdown; a process that is no rank; fewer NVLinks than when the run began;
    uncorrected memory errors; an error that the driver reported; too little free memory; an SM clock that fell below
    ``LEAST_CLOCK`` of the highest one seen while the GPU was busy and not at its power limit.
    """
    tripped: list[str] = []
    for uuid in dict.fromkeys(observation.uuid for observation in seen):
        of_gpu = [observation for observation in seen if observation.uuid == uuid]
        tripped += [f"GPU {uuid}: {problem}" for problem in _problems(of_gpu, expected)]
    tripped += [f"GPU {xid.uuid}: the driver reported Xid {xid.number}" for xid in xids]
    looks = _meanwhile(seen)
    clocks = [look.sm_hertz for look in looks if look.sm_hertz is not None and not (look.reasons or 0) & IDLE]
    return Conditions(
        tuple(tripped),
        power_capped=any((look.reasons or 0) & POWER_CAP for look in looks),
        sm_clock=statistics.median(clocks) if clocks else None,
    )


def _meanwhile(seen: Sequence[Observation]) -> list[Observation]:
    # Of each GPU the first look is at what was before, a test at the power limit perhaps.
    looked: set[str] = set()
    found = []
    for observation in seen:
        if observation.uuid in looked:
            found.append(observation)
        looked.add(observation.uuid)
    return found


def _problems(seen: Sequence[Observation], expected: Expected) -> list[str]:
    problems = []
    reasons = 0
    for observation in seen:
        reasons |= observation.reasons or 0
    problems += [name for bit, name in SLOWDOWNS.items() if reasons & bit]
    foreign = max((_foreign(observation, expected.processes) for observation in seen), default=0)
    if foreign:
        problems.append(f"{foreign} other process{'es' if foreign > 1 else ''} computed on it")
    links = [observation.nvlinks for observation in seen if observation.nvlinks is not None]
    if links and min(links) < expected.nvlinks.get(seen[0].uuid, 0):
        problems.append(f"{min(links)} NVLinks were active, {expected.nvlinks[seen[0].uuid]} when the run began")
    errors = [observation.memory_errors for observation in seen if observation.memory_errors is not None]
    if errors and errors[-1] > errors[0]:
        problems.append(f"{errors[-1] - errors[0]} uncorrected memory errors")
    free = min(observation.free_bytes for observation in seen)
    if free < LEAST_FREE_BYTES:
        problems.append(f"{free / 1024**2:.0f} MiB of memory were free")
    return problems + _clock_problem(seen)


def _clock_problem(seen: Sequence[Observation]) -> list[str]:
    # An idle GPU's clocks are low, and one at its power limit trades them for work.
    busy = [o.sm_hertz for o in seen if o.sm_hertz is not None and not (o.reasons or 0) & (IDLE | POWER_CAP)]
    if len(busy) < LEAST_LOOKS or min(busy) >= LEAST_CLOCK * max(busy):
        return []
    return [f"its SM clock fell from {max(busy) / 1e6:.0f} to {min(busy) / 1e6:.0f} MHz"]


def _foreign(observation: Observation, ranks: Collection[int]) -> int:
    """Processes that are no rank; a container's own process ids are not the driver's, and then only a second one is."""
    if observation.processes is None:
        return 0
    others = observation.processes - frozenset(ranks)
    if len(others) < len(observation.processes):
        return len(others)
    return max(0, len(others) - 1)
