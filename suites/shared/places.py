"""Addends that are a function of rank and place, so that any rank checks a sum of any size where it lies."""

from __future__ import annotations

import torch

from suites.shared.bits import odd_numbers, random_bits, signed
from suites.shared.comparison import assert_close

_CHUNK = 1 << 22
"""Elements that are made or compared at a time."""
_MOST = 3000
"""Repetitions, beyond which every float is infinite or zero."""


def addends(
    numel: int, *, dtype: torch.dtype, rank: int, ranks: int, device: torch.device | str = "cpu", start: int = 0
) -> torch.Tensor:
    """What a rank adds from one place on: odd whole numbers that need every bit that the sum leaves them.

    Args:
        numel: how many.
        dtype: a floating one.
        rank: whose.
        ranks: that add; their sum is exact.
        device: where.
        start: the first place.
    """
    half = round(2 / torch.finfo(dtype).eps) // ranks // 2
    out = torch.empty(numel, dtype=dtype, device=device)
    for at in range(0, numel, _CHUNK):
        end = min(at + _CHUNK, numel)
        bits = random_bits(start + at, start + end, stream=rank, device=out.device)
        out[at:end] = odd_numbers(bits, half)
    return out


def assert_sum(got: torch.Tensor, *, ranks: int, steps: int, where: str) -> None:
    """A tensor of one dimension holds the sum of all ranks' addends.

    Args:
        got: the tensor.
        ranks: that have added.
        steps: how often the sum was taken in place, each further one of what the one before has left everywhere. 1 if
            the addends lie elsewhere.
        where: begins the message.

    Raises:
        AssertionError: it does not.
    """
    for start in range(0, got.numel(), _CHUNK):
        part = got[start : start + _CHUNK]
        total = torch.zeros(len(part), dtype=torch.float64, device=part.device)
        for rank in range(ranks):
            total += addends(
                len(part), dtype=got.dtype, rank=rank, ranks=ranks, device=part.device, start=start
            ).double()
        low, high = repeated(total, ranks=ranks, times=steps - 1, dtype=got.dtype)
        if torch.equal(low, high):
            assert_close(part, low, f"{where}, from element {start} on")
        else:
            wrong = ~((part >= low) & (part <= high))
            first = start + int(wrong.to(torch.uint8).argmax())
            assert not wrong.any(), (
                f"{where}: {int(wrong.sum())} elements are wrong after {steps} steps, from {first} on"
            )


def repeated(total: torch.Tensor, *, ranks: int, times: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Between what a sum is whose sum over all ranks was taken so many more times, in place.

    The sum of two equal floats is exact; of more, each addition may round. Zero stays zero, what is too large is
    infinite, and whole numbers wrap.

    Args:
        total: the first sum, in float64 or int64.
        ranks: that add.
        times: further sums.
        dtype: in which they are taken.
    """
    if not total.is_floating_point():
        grown = (total * signed(pow(ranks, times, 2**64))).to(dtype)
        return grown, grown
    for left in range(min(times, _MOST), 0, -300):  # a factor is finite, so that zero stays zero
        total = total * float(ranks) ** min(left, 300)
    off = ranks * torch.finfo(dtype).eps / 2 if ranks > 2 else 0.0
    low, high = ((total * (1 + sign * off) ** min(times, _MOST)).to(dtype) for sign in (-1, 1))
    return torch.minimum(low, high), torch.maximum(low, high)
