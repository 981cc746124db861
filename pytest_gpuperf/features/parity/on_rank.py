"""The program's side of a check: runs on each rank, and returns what it holds as a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_gpuperf.features.parity.census import Census
from pytest_gpuperf.features.parity.optimizer_steps import OptimizerSteps
from pytest_gpuperf.features.parity.products import read_products
from pytest_gpuperf.features.parity.records import Trace, make_trace
from pytest_gpuperf.features.parity.step_starts import StepStarts, beginning
from pytest_gpuperf.ranks.context import Context


class Traced:
    """A program that returns a trace instead of its result.

    Args:
        program: the user's.
        starts: where each step begins, for each rank; None if steps go on from the one before.
    """

    def __init__(self, program: Callable[..., Any], starts: Sequence[StepStarts] | None = None) -> None:
        self._program = program
        self._starts = starts
        self.__module__ = getattr(program, "__module__", __name__)
        self.__qualname__ = getattr(program, "__qualname__", repr(program))

    def __call__(self, ctx: Context, *args: Any) -> Trace:
        """Runs the program."""
        steps = OptimizerSteps()
        starts = None if self._starts is None else self._starts[ctx.rank]
        with steps, beginning(starts):
            returned = self._program(ctx, *args)
        trace = make_trace(returned, f"rank {ctx.rank} of {self.__qualname__}")
        if not isinstance(returned, Trace):
            auto = steps.trace(returned)
            trace.records = {**auto.records, **trace.records}
        return place(trace, ctx)


def place(trace: Trace, ctx: Context) -> Trace:
    """Adds the rank's meshes to a trace, and what its device computes products in."""
    trace.meshes = ctx.meshes
    trace.products |= read_products(ctx.device)
    return trace


class Counted:
    """A program that returns a census."""

    def __init__(self, program: Callable[..., Any]) -> None:
        self._program = program
        self.__module__ = getattr(program, "__module__", __name__)
        self.__qualname__ = getattr(program, "__qualname__", repr(program))

    def __call__(self, ctx: Context, *args: Any) -> Census:
        """Runs the program."""
        seen = self._program(ctx, *args)
        if not isinstance(seen, Census):
            raise TypeError(
                f"rank {ctx.rank} of {self.__qualname__} returned a {type(seen).__name__}, not a census: write with "
                "census(model, optimizer) as seen around the loop, and return seen"
            )
        seen.meshes = ctx.meshes
        return seen
