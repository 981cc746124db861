"""What a step must do, whatever the program: a model of the hardware expects a time from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective of a step."""

    op: str
    """As for ``Timing.busbw``: all_reduce, all_gather, ..."""
    nbytes: int
    """S as nccl-tests counts it: see ``bandwidth.algorithm_bandwidth``."""
    times: int = 1
    """How often the step has it."""


@dataclass(frozen=True, slots=True)
class Work:
    """All that one step must do on each rank; parts that are left out cost nothing.

    The fastest step does all parts at the same time, each at its limit. The slowest plausible one does them one after
    the other.
    """

    ranks: int = 1
    exchanges: tuple[Exchange, ...] = ()
    flop: float = 0.0
    """Floating-point operations of matrix products on one rank."""
    dtype: str = "bfloat16"
    """The dtype of the products, as torch names it, without its module."""
    memory_bytes: float = 0.0
    """Read and written in one GPU's own memory."""
    amount: float = 1.0
    """What a step amounts to in the unit of a rate, so that the rate is the amount over the time; of times 1."""
