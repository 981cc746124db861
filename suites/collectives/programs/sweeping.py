"""A collective at many sizes, each with buffers of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pytest_gpuperf import Context
from suites.collectives.programs import plain
from suites.collectives.programs.plain import Program
from suites.collectives.reference import Collective
from suites.shared.step import Step

DTYPE = torch.bfloat16
OPERATIONS: dict[str, tuple[Program, bool]] = {
    "all_reduce": (plain.all_reduce, False),
    "all_gather": (plain.all_gather, True),
    "reduce_scatter": (plain.reduce_scatter, True),
    "all_to_all": (plain.all_to_all, True),
    "broadcast": (plain.broadcast, False),
    "send_recv": (plain.send_recv, False),
}
"""Each operation's program, and whether nccl-tests' size S is that of all ranks' shares together."""


def of_size(op: str, nbytes: int, world_size: int) -> Collective:
    """The one that moves what nccl-tests calls size S; of at least one element for each rank."""
    _, divided = OPERATIONS[op]
    numel = max(1, nbytes // DTYPE.itemsize // (world_size if divided else 1))
    return Collective(name=op, numel=numel, dtype=DTYPE, seed=1, members=tuple(range(world_size)))


def at_sizes(ctx: Context, *, sizes: Sequence[int], collective: str) -> Callable[[int], Step[torch.Tensor | None]]:
    """Returns a function of nccl-tests' size S in bytes, which allocates and fills what that size needs."""
    program, _ = OPERATIONS[collective]
    return lambda nbytes: program(ctx, collective=of_size(collective, nbytes, ctx.world_size))
