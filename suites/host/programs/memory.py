"""How long a load from each NUMA node's memory takes, from each node, and how fast a node's cores copy together."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from pytest_gpuperf import Context
from suites.host.programs.chase import LINE, Chase, Ring, Words, chase_of, random_order
from suites.host.programs.cores import allowed, at_once, on_cores

NODES = Path("/sys/devices/system/node")
Nodes: TypeAlias = Mapping[str, Sequence[int]]
"""The allowed cores of each node, by the node's number."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What was measured of the nodes, in the order of their names."""

    nodes: tuple[str, ...]
    latencies: list[list[list[float]]]
    """Seconds of a load: samples by the node whose core loads, and by the node whose memory it loads from."""
    copies: list[list[list[float]]]
    """By node and core: when the core began to copy, and when each of its copies ended."""
    part: list[int]
    """By node: bytes of one such copy."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy within the memory of the core that made it."""

    source: Words
    destination: Words

    @classmethod
    def of(cls, core: int, nbytes: int) -> Copy:
        """Both sides are written here, so that their pages are of this core's node."""
        source = np.arange(core, core + nbytes // 8, dtype=np.uint64)
        return cls(source, np.full_like(source, np.iinfo(np.uint64).max))

    def step(self) -> None:
        """Copies all of it."""
        np.copyto(self.destination, self.source)

    def verify(self, steps: int) -> None:
        """The destination holds the source."""
        assert np.array_equal(self.destination, self.source), "a copy differs from its source"


def nodes_of(cores: Collection[int], root: Path = NODES) -> dict[str, tuple[int, ...]]:
    """Which of these cores each NUMA node has; nodes without any are left out.

    Args:
        cores: The cores.
        root: The kernel's folder of nodes. Without it all cores are of the node 0.
    """
    found: dict[str, tuple[int, ...]] = {}
    for folder in sorted(root.glob("node[0-9]*"), key=lambda folder: int(folder.name.removeprefix("node"))):
        own = tuple(sorted(_numbers((folder / "cpulist").read_text()) & set(cores)))
        if own:
            found[folder.name.removeprefix("node")] = own
    return found or {"0": tuple(sorted(cores))}


def _numbers(text: str) -> set[int]:
    """The numbers of a list in the kernel's form, such as 0-3,8."""
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}


def latencies(chase: Chase, nodes: Nodes, *, places: int, steps: int, samples: int) -> list[list[list[float]]]:
    """Time chases through each node's memory, from each node.

    A core of the memory's node writes the ring, so that its pages are there. Each chase continues where the one
    before it has ended: what it visits is in no core's cache.

    Args:
        chase: The machine code.
        nodes: The nodes and their cores.
        places: Places of the ring, of 64 bytes each.
        steps: Loads of a sample.
        samples: How many, after one that is not counted.

    Returns:
        Seconds of a load: samples by the node that loads and by the node of the memory.
    """
    order = random_order(places)
    found: list[list[list[float]]] = [[] for _ in nodes]
    for home in nodes.values():
        (ring,) = on_cores([middle(home)], lambda core: Ring.of(order))
        at = ring.address(0)
        for reader, cores in enumerate(nodes.values()):

            def timed(core: int, start: int = at) -> tuple[list[float], int]:
                return timed_chases(chase, start, steps=steps, samples=samples)

            ((seconds, at),) = on_cores([middle(cores)], timed)
            found[reader].append(seconds)
        expected = ring.address(steps * (samples + 1) * len(nodes))
        assert at == expected, f"the chase ended at {at:#x}, expected {expected:#x}"
    return found


def middle(cores: Sequence[int]) -> int:
    """One core of a node, and not the first one, which often serves the interrupts."""
    return cores[len(cores) // 2]


def timed_chases(chase: Chase, at: int, *, steps: int, samples: int) -> tuple[list[float], int]:
    """Seconds of a load in each sample but the first, and the address at which the last one ends."""
    times = [time.perf_counter()]
    for _ in range(samples + 1):
        at = chase(at, steps)
        times.append(time.perf_counter())
    return [(end - start) / steps for start, end in itertools.pairwise(times[1:])], at


def memory(
    ctx: Context,
    *,
    cores: Collection[int],
    host: str,
    nbytes: int,
    steps: int,
    samples: int,
    least: int,
    seconds: float,
) -> Memory:
    """Measure latency and bandwidth of each node's memory.

    Args:
        ctx: The rank.
        cores: Those that the pytest process may use.
        host: The name of its host.
        nbytes: The size of a ring, and of what the cores of a node copy together; far beyond the last cache.
        steps: Loads of a sample.
        samples: Samples of each pair of nodes.
        least: Bytes that a core copies at a time, at least.
        seconds: How long the cores of a node copy.
    """
    nodes = nodes_of(allowed(cores, host))
    part = [max(least, nbytes // len(own)) // LINE * LINE for own in nodes.values()]
    copies = [
        at_once(own, lambda core, size=size: Copy.of(core, size), seconds=seconds)  # type: ignore[misc]
        for own, size in zip(nodes.values(), part, strict=True)
    ]
    found = latencies(chase_of(), nodes, places=nbytes // LINE, steps=steps, samples=samples)
    return Memory(tuple(nodes), found, copies, part)
