"""Products of matrices on a device that one rank has to share: somebody else computes on it at the same time."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.shared.step import Step
from suites.stragglers.programs.late import matrix

OTHERS = 64
"""What is added to a rank's number for the matrix of who shares its device."""


def products(ctx: Context, *, shared: int | None, width: int, own: int, beside: int) -> Step[torch.Tensor]:
    """A matrix's square, computed so many times; nobody waits for anybody.

    Args:
        ctx: the rank.
        shared: the rank that shares its device; None if none does.
        width: of the matrices.
        own: products of a rank's own.
        beside: products of who shares the device.
    """
    x = matrix(ctx.rank, width=width).to(ctx.device)
    square = torch.empty_like(x)
    neighbour = Neighbour(ctx, width, beside) if ctx.rank == shared else None

    def step() -> torch.Tensor:
        if neighbour is not None:
            neighbour.begin()
        for _ in range(own):
            torch.mm(x, x, out=square)
        if neighbour is not None:
            neighbour.end()
        return square

    return step


def products_then_sum(ctx: Context, *, shared: int | None, width: int, own: int, beside: int) -> Step[torch.Tensor]:
    """The step of ``products``, then the sum of all ranks' squares."""
    compute = products(ctx, shared=shared, width=width, own=own, beside=beside)

    def step() -> torch.Tensor:
        square = compute()
        dist.all_reduce(square)
        return square

    return step


class Neighbour:
    """A neighbour that computes on the rank's device.

    On a GPU it has a stream of its own that goes first: its products hold the GPU's units, and the rank's get what is
    left. On a CPU its products take the rank's core in turn.
    """

    def __init__(self, ctx: Context, width: int, products: int) -> None:
        self._x = matrix(OTHERS + ctx.rank, width=width).to(ctx.device)
        self._square = torch.empty_like(self._x)
        self._products = products
        self._stream = torch.cuda.Stream(ctx.device, priority=-1) if ctx.device.type == "cuda" else None

    def begin(self) -> None:
        """Its products begin when the rank's do."""
        if self._stream is None:
            self._compute()
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._x.device))
        with torch.cuda.stream(self._stream):
            self._compute()

    def end(self) -> None:
        """None of them is left when the step ends: the next step would pay for it."""
        if self._stream is not None:
            torch.cuda.current_stream(self._x.device).wait_stream(self._stream)

    def _compute(self) -> None:
        for _ in range(self._products):
            torch.mm(self._x, self._x, out=self._square)
