"""Orders of a ring: which rank sends to which, so that its slowest hop is as fast as can be, or as slow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from pytest_gpuperf import Context
from suites.nvlink.programs.copies import Row, complaint, fill_sent, hops
from suites.shared.step import Step

ALIKE = 1.2
"""Up to this ratio between the fastest and the slowest pair, the order of a ring makes no difference worth a test."""


def orders(matrix: Sequence[Row]) -> tuple[list[int], list[int]] | None:
    """The best and the worst order of a ring, by the bandwidth of its slowest hop and then by the sum of all.

    Args:
        matrix: bandwidths in B/s of every ordered pair; up to 8 GPUs, since all orders are tried.

    Returns:
        Two orders, each from rank 0 on; None if all pairs are alike.
    """
    found = hops(matrix)
    if found[-1].bandwidth <= ALIKE * found[0].bandwidth:
        return None
    rate = {(hop.sender, hop.receiver): hop.bandwidth for hop in found}

    def worth(order: list[int]) -> tuple[float, float]:
        rates = [rate[pair] for pair in zip(order, (*order[1:], order[0]), strict=True)]
        return min(rates), sum(rates)

    rings = [[0, *rest] for rest in itertools.permutations(range(1, len(matrix)))]
    return max(rings, key=worth), min(rings, key=worth)


def after(order: Sequence[int], rank: int) -> int:
    """The rank that a rank sends to."""
    return order[(order.index(rank) + 1) % len(order)]


def ring_of(ctx: Context, *, order: Sequence[int], nbytes: int, seed: int) -> Step[torch.Tensor]:
    """Every rank's buffer goes to the GPU of the rank after it in the order; returns what was written there."""
    source = torch.empty(nbytes, dtype=torch.uint8, device=ctx.device)
    fill_sent(source, rank=ctx.rank, seed=seed)
    to = after(order, ctx.rank)
    destination = torch.zeros_like(source, device=torch.device("cuda", to) if source.is_cuda else None)
    return lambda: destination.copy_(source, non_blocking=True)


def arrived(ctx: Context, destination: torch.Tensor, order: Sequence[int], seed: int) -> None:
    """The GPU after this one in the order holds what this rank sends.

    Raises:
        AssertionError: it holds anything else.
    """
    wrong = complaint(destination, rank=ctx.rank, seed=seed, gpu=after(order, ctx.rank))
    assert not wrong, f"rank {ctx.rank}: {wrong}"
    destination.zero_()  # a later step must write it anew
