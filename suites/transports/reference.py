"""What each rank holds after so many steps, from the places of the elements alone."""

from __future__ import annotations

import torch

from pytest_gpuperf import Context
from suites.shared.bits import wrong_bits
from suites.shared.comparison import assert_close
from suites.transports.programs.sending import addends

CHUNK = 1 << 22
"""Elements that are compared at a time."""


def ring(ctx: Context, received: torch.Tensor, steps: int, nbytes: int) -> None:
    """The bits of the rank before; they are wiped, so that a later step must send them anew."""
    assert received.numel() == nbytes, f"rank {ctx.rank}: {received.numel()} bytes, not {nbytes}"
    wrong = wrong_bits(received, stream=(ctx.rank - 1) % ctx.world_size)
    assert not wrong, f"rank {ctx.rank}: {wrong} of {nbytes} bytes are wrong"
    received.zero_()


def all_reduce(ctx: Context, summed: torch.Tensor, steps: int, nbytes: int) -> None:
    """The sum; each further step multiplies it by the number of ranks, until it is infinite.

    Exact for a number of ranks that is a power of two, and for few steps.
    """
    assert summed.nbytes == nbytes, f"rank {ctx.rank}: {summed.nbytes} bytes, not {nbytes}"
    grown = float(ctx.world_size) ** min(steps - 1, 200)
    for start in range(0, summed.numel(), CHUNK):
        part = summed[start : start + CHUNK]
        parts = [addends(len(part), rank=rank, start=start, device=part.device) for rank in range(ctx.world_size)]
        expected = (torch.stack(parts).sum(0).double() * grown).float()
        assert_close(part, expected, f"rank {ctx.rank}, from element {start} on")
