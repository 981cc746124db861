"""Many small all_reduces: one call for each, all in one group call, through one flat buffer, and in a CUDA graph.

The tensors are the parts of one collective's input, so that all parts together end as that collective does.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.collectives.programs.plain import reduce_op
from suites.collectives.reference import Collective
from suites.shared.step import Step, Tensors, captured

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


def in_part_of_the_world(ctx: Context, *, xs: list[torch.Tensor], asynchronous: bool) -> Tensors:
    """What a rank has if collectives of one kind are issued together in its pair, whose ranks are far apart.

    Args:
        ctx: the rank's context.
        xs: vectors of all ranks, of a multiple of four elements; each is split into a part and one three times as long.
        asynchronous: whether the group call returns before they are done.
    """
    group = ctx.mesh((2, ctx.world_size // 2), ("outer", "inner")).get_group("outer")
    x = xs[ctx.rank].to(ctx.device)
    parts = list(x.split([len(x) // 4, len(x) - len(x) // 4]))
    reduced = [part.clone() for part in parts]
    gathered = [torch.empty(2 * len(part), dtype=x.dtype, device=x.device) for part in parts]
    scattered = [torch.empty(len(part) // 2, dtype=x.dtype, device=x.device) for part in parts]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # a newer torch has other names for the last two
        with dist._coalescing_manager(group, async_ops=asynchronous) as reducing:
            for part in reduced:
                dist.all_reduce(part, dist.ReduceOp.MIN, group)
        with dist._coalescing_manager(group, async_ops=asynchronous) as gathering:
            for whole, part in zip(gathered, parts, strict=True):
                dist.all_gather_into_tensor(whole, part, group)
        with dist._coalescing_manager(group, async_ops=asynchronous) as scattering:
            for share, part in zip(scattered, parts, strict=True):
                dist.reduce_scatter_tensor(share, part, dist.ReduceOp.MAX, group)
    if asynchronous:
        for together in (reducing, gathering, scattering):
            together.wait()
    kinds = {"reduced": reduced, "gathered": gathered, "scattered": scattered}
    return {f"{kind}, {place + 1}": made for kind, tensors in kinds.items() for place, made in enumerate(tensors)}
