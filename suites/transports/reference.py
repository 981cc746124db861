"""What each rank holds after so many steps, from the places of the elements alone."""

from __future__ import annotations

import torch

from pytest_gpuperf import Context
from suites.shared.bits import wrong_bits
from suites.shared.places import assert_sum


def arrived(ctx: Context, received: torch.Tensor, steps: int, nbytes: int) -> None:
    """The bits of the rank before; they are wiped, so that a later step must send them anew."""
    assert received.numel() == nbytes, f"rank {ctx.rank}: {received.numel()} bytes, not {nbytes}"
    wrong = wrong_bits(received, stream=(ctx.rank - 1) % ctx.world_size)
    assert not wrong, f"rank {ctx.rank}: {wrong} of {nbytes} bytes are wrong"
    received.zero_()


def summed(ctx: Context, total: torch.Tensor, steps: int, nbytes: int) -> None:
    """The sum; each further step multiplies it by the number of ranks."""
    assert total.nbytes == nbytes, f"rank {ctx.rank}: {total.nbytes} bytes, not {nbytes}"
    assert_sum(total, ranks=ctx.world_size, steps=steps, where=f"rank {ctx.rank}")
