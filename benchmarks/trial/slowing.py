"""A plugin that makes the programs of one perf test slower: --slow-test NODEID --slow-by FRACTION.

After each step the stream waits in a kernel that spins (on CPUs, the process sleeps), for so long that both together
take the asked fraction longer than the step alone. Each rank measures its own step for that before anything is timed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import Context, Perf, Resettable
from pytest_gpuperf.run.launches import launch_of

if TYPE_CHECKING:
    import torch

WARMUP = 5
CALLS = 20  # back to back between two events, at most
WINDOW = 0.06  # seconds that they take together, where fewer do: programs are made anew in each group of a comparison
ROUNDS = 7  # of the step without and with what slows it down
CORRECTIONS = 3
SPIN = 1_000_000  # clock cycles, half a millisecond

Program = Callable[..., Callable[[], Any]]

ACTED = pytest.StashKey[list[str]]()
"""Of the session's config: once for each program that was slowed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds which test is slowed, and by how much."""
    parser.addoption("--slow-test", metavar="NODEID", help="the test whose programs become slower")
    parser.addoption("--slow-by", metavar="FRACTION", type=float, default=0.05, help="of their time (default 0.05)")


def pytest_configure(config: pytest.Config) -> None:
    """Puts the slowing before the fixture's own methods, for this process."""
    test = config.getoption("--slow-test")
    if test is None:
        return
    by: float = config.getoption("--slow-by")
    if by <= 0:
        raise pytest.UsageError(f"--slow-by must be above 0, got {by:g}")
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    measure, compare, overlap = Perf.measure, Perf.compare, Perf.overlap
    acted = config.stash[ACTED] = []

    def slow(perf: Perf, program: Program) -> Program:
        request = perf._checks.request
        if request is None or launch_of(request.node).identity != test:
            return program
        acted.append(test)
        return slowed(program, by)

    @wraps(measure)
    def measured(self: Perf, program: Program, /, **kwargs: Any) -> Any:
        return measure(self, slow(self, program), **kwargs)

    @wraps(compare)
    def compared(self: Perf, *, optimized: Program, **kwargs: Any) -> Any:
        return compare(self, optimized=slow(self, optimized), **kwargs)

    @wraps(overlap)
    def overlapped(self: Perf, *, compute: Program, **kwargs: Any) -> Any:
        return overlap(self, compute=slow(self, compute), **kwargs)

    for original, replaced in ((measure, measured), (compare, compared), (overlap, overlapped)):
        patch.setattr(Perf, original.__name__, replaced)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run that slowed nothing, though it was to.

    Raises:
        pytest.UsageError: as where the test is not there, or measures nothing.
    """
    test = session.config.getoption("--slow-test")
    if test is not None and not session.config.stash[ACTED] and session.exitstatus in (0, 1):
        raise pytest.UsageError(f"--slow-test {test}: no program of such a test was measured, so nothing was slowed")


def slowed(program: Program, by: float) -> Program:
    """The program, whose step takes longer by this fraction.

    Raises:
        TypeError: when called, for a step that is reset between samples: it cannot be measured beforehand.
    """

    @wraps(program)
    def slow_program(ctx: Context, **kwargs: Any) -> Callable[[], Any]:
        step = program(ctx, **kwargs)
        if isinstance(step, Resettable):
            raise TypeError("a step that is reset between samples cannot be slowed: slow another test")
        seconds = 0.0

        def slow_step() -> Any:
            result = step()
            wait(seconds)
            return result

        wait = waiting(ctx.device)
        calls = calls_of(step, ctx.device)
        # By trial: beside a step the kernel costs neither what it does alone nor nothing.
        for _ in range(CORRECTIONS):
            seconds = max(0.0, seconds + lacking(step, slow_step, by, ctx.device, calls))
        return slow_step

    return slow_program


def waiting(device: torch.device) -> Callable[[float], None]:
    """What keeps the current stream, or the CPU's process, busy for so many seconds."""
    import torch

    if device.type == "cpu":
        return time.sleep
    once, twice = (seconds_of(partial(torch.cuda._sleep, spins * SPIN), device) for spins in (1, 2))

    def spin(seconds: float) -> None:
        if cycles := round(seconds / (twice - once) * SPIN):
            torch.cuda._sleep(cycles)

    return spin


def calls_of(step: Callable[[], Any], device: torch.device) -> int:
    """How often to call the step for one look at its time; as often on every rank, since it may communicate."""
    import torch
    import torch.distributed as dist

    slowest = torch.tensor(seconds_of(step, device, 2), device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return min(CALLS, max(2, round(WINDOW / float(slowest))))


def lacking(
    step: Callable[[], Any], slow_step: Callable[[], Any], by: float, device: torch.device, calls: int
) -> float:
    """Seconds that the slow step is short of its time, below 0 if it takes longer: the median of several rounds.

    A round looks at one right after the other: a step's time drifts by as much as is to be added.
    """
    rounds = [(seconds_of(step, device, calls), seconds_of(slow_step, device, calls)) for _ in range(ROUNDS)]
    return statistics.median((1 + by) * alone - together for alone, together in rounds)


def seconds_of(step: Callable[[], Any], device: torch.device, calls: int = CALLS) -> float:
    """What one of so many calls back to back takes on the device, after a quarter as many."""
    import torch

    for _ in range(math.ceil(calls * WARMUP / CALLS)):
        step()
    if device.type == "cpu":
        began = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - began) / calls
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / calls
