"""Work on certain cores: a thread for each, which ends with the work, so that the caller stays where it is."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from pytest_gpuperf import Context
from suites.host.programs.chase import Chase, Ring, chase_of, random_order
from suites.shared.step import Result

PLACES = 64
"""Places of each core's ring: 4 KiB, which the first cache holds, also if two threads of a core share it."""


class Task(Protocol):
    """Work that a core repeats."""

    def step(self) -> None:
        """Does the work once."""

    def verify(self, steps: int) -> None:
        """Raises AssertionError unless so many steps have left what they should."""


@dataclass(slots=True)
class Spin:
    """A chase around a ring in the core's first cache, which no other core and no memory slows down."""

    chase: Chase
    ring: Ring
    each: int
    """Loads of a step."""
    at: int = field(init=False)

    def __post_init__(self) -> None:
        """Begins at the first place."""
        self.at = self.ring.address(0)

    def step(self) -> None:
        """Continues where the last step has ended."""
        self.at = self.chase(self.at, self.each)

    def verify(self, steps: int) -> None:
        """The chase is where all of these loads lead."""
        expected = self.ring.address(steps * self.each)
        assert self.at == expected, f"{steps} steps of {self.each} loads end at {self.at:#x}, expected {expected:#x}"


def allowed(cores: Collection[int], host: str) -> tuple[int, ...]:
    """The cores of the pytest process if it runs on this host; else those of this process.

    A rank of a perf test may be bound to the cores near its GPU. The pytest process is not.
    """
    return tuple(sorted(cores if platform.node() == host else os.sched_getaffinity(0)))


def on_cores(cores: Sequence[int], work: Callable[[int], Result]) -> list[Result]:
    """Call ``work(core)`` for each core, on a thread that is pinned to it, all at once.

    Raises:
        BaseException: What the work raised on the first core that failed.
    """

    def pinned(core: int) -> Result:
        os.sched_setaffinity(0, {core})  # of this thread alone
        return work(core)

    with ThreadPoolExecutor(len(cores)) as threads:
        running = [threads.submit(pinned, core) for core in cores]
    failed = [error for one in running if (error := one.exception()) is not None]
    for error in sorted(failed, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # those that only waited for the one that failed come last
    return [one.result() for one in running]


def at_once(cores: Sequence[int], prepare: Callable[[int], Task], *, seconds: float) -> list[list[float]]:
    """Repeat a task on each core, on all of them at the same time.

    Args:
        cores: The cores.
        prepare: Called on each core, before any of them begins; returns the core's task.
        seconds: How long all of them repeat it together. A core that the host holds up begins late; others go on.

    Returns:
        For each core, when it began and when each of its steps ended.
    """
    gate = threading.Barrier(len(cores))
    begun: list[float] = []

    def repeat(core: int) -> list[float]:
        try:
            task = prepare(core)
            task.step()  # the first one finds cold caches, and a core that sleeps
        except BaseException:
            gate.abort()
            raise
        gate.wait()
        times = repeated_for(task.step, seconds, begun, len(cores))
        task.verify(len(times))
        return times

    return on_cores(cores, repeat)


def repeated_for(
    step: Callable[[], None],
    seconds: float,
    begun: list[float],
    cores: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Repeat a step until so many cores have done so together for this long.

    Args:
        step: What is repeated; a step that has begun is finished.
        seconds: How long.
        begun: When each core began; this one adds itself.
        cores: How many cores there are.
        now: The clock.

    Returns:
        When the first step began and when each of them ended.
    """
    times = [now()]
    begun.append(times[0])
    while len(begun) < cores or times[-1] < max(begun) + seconds:
        step()
        times.append(now())
    return times


def spinning(ctx: Context, *, cores: Collection[int], host: str, seconds: float, each: int) -> list[list[float]] | None:
    """Keep all cores busy at once, each within its own first cache; rank 0 does so, and the others return None.

    Args:
        ctx: The rank.
        cores: Those that the pytest process may use.
        host: The name of its host.
        seconds: How long.
        each: Loads of a step.

    Returns:
        For each core, when it began and when each of its steps ended.
    """
    if ctx.rank:
        return None
    chase, order = chase_of(), random_order(PLACES)
    return at_once(allowed(cores, host), lambda core: Spin(chase, Ring.of(order), each), seconds=seconds)
