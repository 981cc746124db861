"""What both arms measure: operations, world sizes, and two sweeps of sizes with their targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_gpuperf import GiB, KiB, MiB

# For both arms, where the caller does not say otherwise. NCCL prepares each graph for eager operations beside it: in
# torch's graphs that takes longer than a small collective, in those of nccl-tests 1 us. Without it they are alike.
SHARED_DEFAULTS = {"NCCL_GRAPH_MIXING_SUPPORT": "0"}


class ArmError(Exception):
    """An arm measured nothing that could be compared; the message says why, and what helps."""


@dataclass(frozen=True, slots=True)
class Operation:
    """How nccl-tests measures what one of the suite's programs does."""

    binary: str
    in_place: bool
    """Whether the program's output is its input; says which of nccl-tests' two columns is compared."""


# By the names of suites/collectives. dist.all_reduce works in place; the other programs have an output of their own.
OPERATIONS: Mapping[str, Operation] = {
    "all_reduce": Operation("all_reduce_perf", in_place=True),
    "all_gather": Operation("all_gather_perf", in_place=False),
    "reduce_scatter": Operation("reduce_scatter_perf", in_place=False),
    "all_to_all": Operation("alltoall_perf", in_place=False),
    "send_recv": Operation("sendrecv_perf", in_place=False),
}


@dataclass(frozen=True, slots=True)
class Sweep:
    """Sizes that are measured alike, each a factor larger than the one before; in nccl-tests one process."""

    quantity: str
    """What is compared: ``latency`` or ``busbw``."""
    smallest: int
    """Bytes, S of nccl-tests."""
    largest: int
    factor: int
    cuda_graph: bool
    """Whether both arms time CUDA graphs; else nccl-tests' host and the plugin's gate launch operations in a row."""
    tolerance: float
    """The relative difference that the target allows, in both directions."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes, ascending."""
        sizes = [self.smallest]
        while sizes[-1] < self.largest:
            sizes.append(sizes[-1] * self.factor)
        return tuple(sizes)

    @property
    def ends(self) -> Sweep:
        """The smallest and the largest size alone."""
        return replace(self, factor=self.largest // self.smallest)


SWEEPS = (
    Sweep("latency", KiB, MiB, 4, cuda_graph=True, tolerance=0.05),
    Sweep("busbw", 64 * MiB, GiB, 4, cuda_graph=False, tolerance=0.01),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One operation of one size on so many ranks."""

    op: str
    ranks: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What each arm measures in each of its turns."""

    ops: tuple[str, ...]
    ranks: tuple[int, ...]
    sweeps: tuple[Sweep, ...]

    @property
    def points(self) -> Iterator[tuple[Sweep, Point]]:
        """Every point, in the order of the table."""
        for ranks in self.ranks:
            for op in self.ops:
                for sweep in self.sweeps:
                    yield from ((sweep, Point(op, ranks, nbytes)) for nbytes in sweep.sizes)


@dataclass(frozen=True, slots=True)
class Figure:
    """What one arm measured at a point in one turn."""

    seconds: float
    busbw: float
    """Bytes per second, by the arm's own formula."""
    unfit: str = ""
    """Why the machine was in no state to be measured; empty where nothing is known against it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of an arm."""

    figures: Mapping[Point, Figure]
    nccl: str
    """Version of the NCCL library that was loaded."""
    tool: str
    """What measured, and its version."""
