"""Many small all_reduces: one call for each, all in one group call, through one flat buffer, and in a CUDA graph.

The tensors are the parts of one collective's input, so that all parts together end as that collective does.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.collectives.programs.plain import reduce_op
from suites.collectives.reference import Collective
from suites.shared.step import Step, captured

Parts = list[torch.Tensor]


class Small:
    """The tensors of a rank, each with memory of its own."""

    def __init__(self, ctx: Context, collective: Collective, count: int) -> None:
        """Allocates ``count`` tensors, or fewer if there are not as many elements, and fills them."""
        self._rank, self._count = ctx.rank, count
        self.op = reduce_op(collective.op)
        whole = collective.start(ctx.rank, ctx.device)
        self.parts = [part.clone() for part in whole.chunk(count)]

    def fill(self, collective: Collective) -> None:
        """Puts the collective's input in place."""
        whole = collective.start(self._rank, self.parts[0].device)
        torch._foreach_copy_(self.parts, list(whole.chunk(self._count)))

    def one_by_one(self) -> Step[Parts]:
        """A call for each tensor."""

        def step() -> Parts:
            for part in self.parts:
                dist.all_reduce(part, self.op)
            return self.parts

        return step

    def coalesced(self) -> Step[Parts]:
        """All calls as one group: NCCL gets them together and launches one kernel."""

        def step() -> Parts:
            with dist._coalescing_manager():
                for part in self.parts:
                    dist.all_reduce(part, self.op)
            return self.parts

        return step

    def flat(self) -> Step[Parts]:
        """One all_reduce of a buffer that all tensors are copied to and back from."""
        buffer = torch.cat(self.parts)
        views = list(buffer.split([part.numel() for part in self.parts]))

        def step() -> Parts:
            torch._foreach_copy_(views, self.parts)
            dist.all_reduce(buffer, self.op)
            torch._foreach_copy_(self.parts, views)
            return self.parts

        return step

    def in_a_graph(self) -> Step[Parts]:
        """A call for each tensor, captured once and replayed; the tensors are reduced by the warm-up then."""
        return captured(self.one_by_one())


def one_by_one(ctx: Context, *, collective: Collective, count: int) -> Step[Parts]:
    return Small(ctx, collective, count).one_by_one()


def coalesced(ctx: Context, *, collective: Collective, count: int) -> Step[Parts]:
    return Small(ctx, collective, count).coalesced()


def flat(ctx: Context, *, collective: Collective, count: int) -> Step[Parts]:
    return Small(ctx, collective, count).flat()


def in_a_graph(ctx: Context, *, collective: Collective, count: int) -> Step[Parts]:
    small = Small(ctx, collective, count)
    step = small.in_a_graph()
    small.fill(collective)
    return step


def wrong_parts(ctx: Context, *, way: str, collective: Collective, count: int, steps: int = 2) -> list[str]:
    """Takes steps with inputs of their own by a method of ``Small``; returns what is wrong."""
    small = Small(ctx, collective, count)
    step: Step[Parts] = getattr(small, way)()
    wrong = []
    for number in range(steps):
        current = collective.again(number)
        small.fill(current)
        try:
            current.assert_right(ctx.rank, torch.cat(step()))
        except AssertionError as error:
            wrong.append(f"{way}, step {number + 1}: {error}")
    return wrong
