"""Runs collectives on a rank and compares there, so that tensors of any size stay where they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pytest_gpuperf import Context
from suites.collectives.programs.plain import Program
from suites.collectives.reference import Collective

IN_PLACE = ("all_reduce", "broadcast", "reduce")
_BEFORE, _AFTER = 3, 5  # elements around an input: it is part of a larger buffer, and starts at an odd place
_GUARD = 85


class Input:
    """A rank's input in the middle of a buffer, whose other elements nobody may write."""

    def __init__(self, ctx: Context, collective: Collective) -> None:
        """Allocates; ``fill`` is still to come."""
        self._rank = ctx.rank
        numel = _BEFORE + collective.started(ctx.rank) + _AFTER
        self._buffer = torch.full((numel,), _GUARD, dtype=collective.dtype, device=ctx.device)
        self.x = self._buffer[_BEFORE : numel - _AFTER]

    def fill(self, collective: Collective) -> None:
        """Puts the collective's input in place."""
        collective.start(self._rank, self.x.device, out=self.x)

    def check(self, collective: Collective) -> None:
        """Nobody has written beside the input, nor into it if the output is elsewhere.

        Raises:
            AssertionError: somebody has.
        """
        around = torch.cat((self._buffer[:_BEFORE], self._buffer[-_AFTER:]))
        assert bool((around == _GUARD).all()), f"rank {self._rank}, {collective}: wrote beside its input: {around}"
        if collective.name not in IN_PLACE:
            collective.assert_untouched(self._rank, self.x)


def in_turn(ctx: Context, cases: Sequence[tuple[Program, Collective]], *, steps: int = 2) -> list[str]:
    """Takes each program's step in turn, and then again with other inputs; returns what is wrong.

    A rank that finds something wrong goes on: the others would wait for it.
    """
    inputs = [Input(ctx, collective) for _, collective in cases]
    prepared = [
        program(ctx, collective=collective, x=given.x)
        for (program, collective), given in zip(cases, inputs, strict=True)
    ]
    wrong = []
    for number in range(steps):
        for (_, usual), given, step in zip(cases, inputs, prepared, strict=True):
            collective = usual.again(number)
            given.fill(collective)
            output = step()
            try:
                collective.assert_right(ctx.rank, output)
                given.check(collective)
            except AssertionError as error:
                wrong.append(f"step {number + 1}: {error}")
    return wrong
