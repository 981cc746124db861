"""Messages of many sizes, of all ranks at once: to the next rank of the node, or to its place on the next node."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pytest_gpuperf import Context
from suites.multi_node.programs.levels import Levels
from suites.shared.bits import wrong_bits
from suites.shared.ring import ring
from suites.shared.step import StepOf


def ends(levels: Levels, way: str) -> tuple[int, int]:
    """The rank that a rank sends to, and the one that it receives from.

    Args:
        levels: the rank's place.
        way: ``inside`` its node, or ``between`` nodes.
    """
    steps = (1, -1)
    if way == "inside":
        to, of = (levels.rank_at(levels.node, levels.place + step) for step in steps)
    else:
        to, of = (levels.rank_at(levels.node + step, levels.place) for step in steps)
    return to, of


def exchange(ctx: Context, *, sizes: Sequence[int], nodes: int, way: str) -> StepOf:
    """Steps of so many bytes, in this way."""
    return ring(ctx, sizes=sizes, ends=ends(Levels.of(ctx, nodes), way))


def assert_arrived(ctx: Context, received: torch.Tensor, *, nodes: int, way: str) -> None:
    """What came is what the sender has; it is then wiped, so that a later step must write it anew.

    Raises:
        AssertionError: it is anything else.
    """
    _, sender = ends(Levels.of(ctx, nodes), way)
    wrong = wrong_bits(received, stream=sender)
    assert not wrong, f"rank {ctx.rank}, {way}: {wrong} of {received.numel()} bytes of rank {sender} are wrong"
    received.zero_()
