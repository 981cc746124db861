"""What a measurement was made under, as both sides know it: those who look at the GPUs and those who judge metrics."""

from dataclasses import dataclass
from enum import Enum


class Gate(Enum):
    """What makes a measurement invalid."""

    HARDWARE_SLOWDOWN = "hardware slowdown"
    SOFTWARE_THERMAL_SLOWDOWN = "software thermal slowdown"
    HARDWARE_THERMAL_SLOWDOWN = "hardware thermal slowdown"
    POWER_BRAKE = "power brake"
    OTHER_PROCESSES = "other processes"
    """Processes that are no ranks computed on the GPU; got is how many."""
    LOST_NVLINKS = "lost NVLinks"
    """Fewer NVLinks were active (got) than when the run began (expected)."""
    MEMORY_ERRORS = "memory errors"
    """Uncorrected ones came up meanwhile; got is how many."""
    LITTLE_MEMORY = "little memory"
    """Fewer bytes were free (got) than libraries need for their work space (expected)."""
    SLOW_CLOCK = "slow clock"
    """The SM clock fell, in Hz, from the highest one (expected) to the lowest one (got) of the busy GPU."""
    XID = "Xid"
    """The driver reported an error; got is its number in NVIDIA's XID error catalogue."""


@dataclass(frozen=True, slots=True)
class Tripped:
    """One gate that a GPU did not pass. The gate says what the numbers are; None: it has none."""

    gpu: str
    """Its UUID."""
    gate: Gate
    got: float | None = None
    expected: float | None = None
    unit: str = ""
    """SI unit of both numbers; empty for counts and for the number of an error."""
    node: str = ""
    """Name of the GPU's node; empty without a cluster."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a measurement was made under."""

    tripped: tuple[Tripped, ...]
    """The gates that make it invalid; empty if it is valid."""
    power_capped: bool
    """Whether a GPU was at its power limit, which is normal under a GEMM."""
    sm_clock: float | None = None
    """Median over the looks at busy GPUs, Hz; None if no GPU told."""
    watts: float | None = None
    """Median power of one GPU over the same looks, W; None if no GPU reports it."""
    kelvin: float | None = None
    """Likewise."""


FIT = Conditions((), power_capped=False)
"""Nothing was observed that would make a measurement invalid."""
