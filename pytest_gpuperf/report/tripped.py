"""Why a machine was not fit for a measurement, in words."""

from collections.abc import Sequence
from typing import assert_never

from pytest_gpuperf.figures.conditions import Gate, Tripped


def say_tripped(tripped: Sequence[Tripped]) -> str:
    """Why a machine was not fit for a measurement."""
    return "; ".join(
        f"GPU {one.gpu}{f' of node {one.node}' if one.node else ''}: {_describe_problem(one)}" for one in tripped
    )


def _describe_problem(tripped: Tripped) -> str:
    got, expected = tripped.got or 0, tripped.expected or 0
    match tripped.gate:
        case (
            Gate.HARDWARE_SLOWDOWN | Gate.SOFTWARE_THERMAL_SLOWDOWN | Gate.HARDWARE_THERMAL_SLOWDOWN | Gate.POWER_BRAKE
        ):
            return str(tripped.gate.value)
        case Gate.OTHER_PROCESSES:
            return f"{got:.0f} other process{'es' if got > 1 else ''} computed on it"
        case Gate.LOST_NVLINKS:
            return f"{got:.0f} NVLinks were active, {expected:.0f} when the run began"
        case Gate.MEMORY_ERRORS:
            return f"{got:.0f} uncorrected memory errors"
        case Gate.LITTLE_MEMORY:
            return f"{got / 1024**2:.0f} MiB of memory were free"
        case Gate.SLOW_CLOCK:
            return f"its SM clock fell from {expected / 1e6:.0f} to {got / 1e6:.0f} MHz"
        case Gate.XID:
            return f"the driver reported Xid {got:.0f}"
        case _:
            assert_never(tripped.gate)
