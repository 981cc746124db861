"""Collectives of ``torch.distributed.nn.functional``, whose backward sends the gradients the other way."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch.distributed import ReduceOp
from torch.distributed.nn.functional import (
    all_gather,
    all_reduce,
    all_to_all,
    all_to_all_single,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of

ROOT = 1
"""The rank that others receive from, or send to."""


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Ignores that torch names other functions in place of some of these."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def all_forms(ctx: Context, *, xs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> Tensors:
    """What a rank has of each collective, its input and the gradient of it, if a rank weighs its result by its weights.

    Args:
        ctx: the rank's context.
        xs: a square of each rank, R x R; rows go to the ranks, one to each.
        weights: of each rank, R x R; of a result of one row the first row.
    """
    group, mine = ctx.group, weights[ctx.rank].to(ctx.device)
    found: Tensors = {}

    def use(name: str, leaf: torch.Tensor, result: torch.Tensor) -> None:
        (result * mine[: len(result)].view_as(result)).sum().backward()
        found[name], found[f"gradient of {name}"] = result.detach(), gradient_of(leaf)
        found[f"input of {name} afterwards"] = leaf.detach()

    def leaf() -> torch.Tensor:
        return xs[ctx.rank].to(ctx.device).clone().requires_grad_()

    with without_warnings():
        x = leaf()
        use("broadcast", x, broadcast(x, src=ROOT, group=group))
        x = leaf()
        use("reduce", x, reduce(x, dst=ROOT, op=ReduceOp.SUM, group=group))
        x = leaf()
        use("all_reduce", x, all_reduce(x, op=ReduceOp.SUM, group=group))
        x = leaf()
        piece = torch.empty_like(x[0])
        scattered = reduce_scatter(piece, list(x.unbind()), op=ReduceOp.SUM, group=group)
        use("reduce_scatter", x, scattered[None])
        x = leaf()
        use("gather", x, torch.stack(gather(x[0], dst=ROOT, group=group)))
        x = leaf()
        use("scatter", x, scatter(list(x.unbind()), src=ROOT, group=group)[None])
        x = leaf()
        use("all_gather", x, torch.stack(all_gather(x[0], group=group)))
        x = leaf()
        empty = [torch.empty_like(row) for row in x.detach()]
        use("all_to_all", x, torch.stack(all_to_all(empty, list(x.unbind()), group=group)))
        x = leaf()
        rows = [1] * ctx.world_size
        received = all_to_all_single(
            torch.empty_like(x), x, output_split_sizes=rows, input_split_sizes=rows, group=group
        )
        use("all_to_all_single", x, received)
    return found


def other_operations(ctx: Context, *, op: str, xs: Sequence[torch.Tensor]) -> Tensors:
    """What a rank has of each collective that reduces, by an operation whose gradient torch does not define.

    Args:
        ctx: the rank's context.
        op: the name of the operation.
        xs: a square of each rank, R x R; rows go to the ranks, one to each.
    """
    x, chosen = xs[ctx.rank].to(ctx.device), getattr(ReduceOp, op)
    with without_warnings():
        return {
            "reduce": reduce(x, dst=ROOT, op=chosen, group=ctx.group),
            "all_reduce": all_reduce(x, op=chosen, group=ctx.group),
            "reduce_scatter": reduce_scatter(torch.empty_like(x[0]), list(x.unbind()), op=chosen, group=ctx.group),
            "input afterwards": x,
        }


SENDS = ((0, 3), (1, 2))
"""How many rows each of a pair sends to each."""


def in_pairs(ctx: Context, *, xs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> Tensors:
    """What a rank has of each collective without a root in its pair, whose ranks are far apart, and the gradients.

    The rows that ``reduce_scatter`` gets do not lie in order; others refuse that. Torch takes a root for one of the
    world in one place and for one of the group in another.

    Args:
        ctx: the rank's context.
        xs: of each rank, 2 x 3.
        weights: of each rank, 5 x 2.
    """
    group = ctx.mesh((2, ctx.world_size // 2), ("outer", "inner")).get_group("outer")
    mine = weights[ctx.rank].to(ctx.device)
    sends = list(SENDS[group.rank()])
    receives = [row[group.rank()] for row in SENDS]
    leaves = [xs[ctx.rank].to(ctx.device).clone().requires_grad_() for _ in range(4)]
    summed, averaged, scattered, exchanged = (leaf.t() for leaf in leaves)
    with without_warnings():
        results = {
            "all_reduce": all_reduce(summed.contiguous(), group=group),
            "mean": all_reduce(averaged.contiguous(), op=ReduceOp.AVG, group=group),
            "reduce_scatter": reduce_scatter(mine.new_empty(2), list(scattered[:2].unbind()), group=group)[None],
            "all_to_all_single": all_to_all_single(
                mine.new_empty(sum(receives), 2), exchanged.contiguous(), receives, sends, group=group
            ),
        }
        for result in results.values():
            (result * mine[: len(result)]).sum().backward()
    return {name: result.detach() for name, result in results.items()} | {
        f"gradient of {name}": gradient_of(leaf) for name, leaf in zip(results, leaves, strict=True)
    }
