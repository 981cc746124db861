"""Messages of many sizes, of all ranks at once: inside the node, between nodes on their rail, or across rails.

The ranks of one place on all nodes are a rail: in rail-optimised networks one switch connects their network adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
        way: ``inside`` its node, ``between`` nodes to the same place, or ``crossing`` rails, to the next node's next
            place.
    """
    steps = (1, -1)
    if way == "inside":
        to, of = (levels.rank_at(levels.node, levels.place + step) for step in steps)
    elif way == "between":
        to, of = (levels.rank_at(levels.node + step, levels.place) for step in steps)
    else:
        to, of = (levels.rank_at(levels.node + step, levels.place + step) for step in steps)
    return to, of


def adapters(ctx: Context, *, devices: Path = Path("/sys/class/infiniband")) -> int:
    """How many adapters for RDMA with an active port the rank's node has."""
    ports = devices.glob("*/ports/*/state")
    return len({port.parts[-4] for port in ports if port.read_text().split()[-1] == "ACTIVE"})  # "4: ACTIVE"


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
