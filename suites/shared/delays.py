"""A delay on the rank's device, and a clock that only some calls move: times can then be compared exactly."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from pytest_gpuperf import Context


class Delay:
    """Keeps the device busy for so long; on a GPU by cycles, whose rate is measured once."""

    def __init__(self, ctx: Context, seconds: float) -> None:
        self.seconds = seconds
        self._cycles = _cycles(seconds) if ctx.device.type == "cuda" else None

    def __call__(self) -> None:
        if self._cycles is None:
            time.sleep(self.seconds)
        else:
            torch.cuda._sleep(self._cycles)


def _cycles(seconds: float) -> int:
    """GPU cycles of so many seconds, by how long some took."""
    tried = 20_000_000
    torch.cuda._sleep(tried)  # the clocks rise first
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(tried)
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return round(tried * seconds / (milliseconds / 1e3))


@dataclass(frozen=True, slots=True)
class Moving:
    """Calls that move the clock."""

    owner: object
    """A module, class or object."""
    name: str
    """The function of the owner."""
    seconds: Callable[..., float]
    """Returns the seconds that a call with these arguments takes."""
    instead: bool = False
    """Whether the call does nothing else."""


DELAYS = Moving(Delay, "__call__", lambda delay: delay.seconds, instead=True)
"""Each delay takes its seconds, at once."""


@contextlib.contextmanager
def moved_by(*moves: Moving) -> Iterator[None]:
    """Within it these calls take seconds of ``time.perf_counter``, and nothing else takes any.

    Args:
        moves: the calls.
    """
    now = 0.0

    def clock() -> float:
        return now

    def timed(move: Moving) -> Callable[..., Any]:
        original = getattr(move.owner, move.name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal now
            now += move.seconds(*args, **kwargs)
            return None if move.instead else original(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("time.perf_counter", clock))
        for move in moves:
            stack.enter_context(mock.patch.object(move.owner, move.name, timed(move)))
        yield


@contextlib.contextmanager
def copies_lasting(seconds: Iterable[float]) -> Iterator[None]:
    """Within it each ``copy_`` takes the next of these seconds of ``time.perf_counter``, and nothing else takes any."""
    lasting = iter(seconds)
    with moved_by(Moving(torch.Tensor, "copy_", lambda destination, source: next(lasting))):
        yield
