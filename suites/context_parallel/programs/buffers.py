"""Buffers that torch's ``context_parallel`` cuts along the sequence, and brings together again."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from pytest_gpuperf import Context
from suites.context_parallel.programs.attention import Layout
from suites.shared.step import Tensors


@dataclass(frozen=True, slots=True)
class Orders:
    """An order of its own for each sequence of a batch."""

    indices: torch.Tensor
    """B x S."""

    def _generate_indices(self, restore: bool = False) -> torch.Tensor:
        """What torch's load balancers return: the order, or the one that undoes it."""
        return self.indices.argsort(1) if restore else self.indices


def cut_and_joined(ctx: Context, *, tokens: torch.Tensor, places: torch.Tensor, layout: Layout) -> Tensors:
    """What the rank has of two buffers within the context and after it, and the tokens that it brings together.

    If torch takes an order for each sequence of a batch, it brings together tokens in such orders too.

    Args:
        ctx: the rank's context.
        tokens: B x S x D.
        places: S x D, of which the rank keeps its part after the context.
        layout: which tokens the ranks hold.
    """
    # Here, since this module travels to the ranks by value, and the options with it: torch would not look at the copy.
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import _cp_options, context_parallel_unshard

    mesh = ctx.mesh((ctx.world_size,))
    whole, kept = tokens.to(ctx.device).clone(), places.to(ctx.device).clone()
    before = _cp_options.enable_load_balance
    _cp_options.enable_load_balance = layout == "head-tail"
    try:
        with context_parallel(mesh, buffers=[whole, kept], buffer_seq_dims=[1, 0], no_restore_buffers={kept}):
            held = whole.clone()
            (joined,) = context_parallel_unshard(mesh, [held], [1])
    finally:
        _cp_options.enable_load_balance = before
    results = {"tokens": held, "tokens afterwards": whole, "places": kept, "tokens together": joined}
    if "load_balancer" in inspect.signature(context_parallel_unshard).parameters:
        order = torch.arange(whole.shape[1], device=ctx.device)
        orders = torch.stack([order.roll(number + 1) for number in range(len(whole))])
        turned = torch.stack([sequence[order] for sequence, order in zip(whole, orders, strict=True)])
        mine = turned.chunk(ctx.world_size, 1)[ctx.rank]
        balancer: Any = Orders(orders)  # torch's class of them is private
        (results["turned tokens together"],) = context_parallel_unshard(mesh, [mine], [1], balancer)
    return results


def one_after_another(ctx: Context, *, lengths: list[int]) -> list[list[int]]:
    """Returns the places that a rank holds of each sequence of these lengths.

    Each sequence has a separate context, and is balanced if that fits.

    Args:
        ctx: the rank's context.
        lengths: multiples of the number of ranks; torch balances a sequence if twice that number divides it.
    """
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import _cp_options

    mesh = ctx.mesh((ctx.world_size,))
    before = _cp_options.enable_load_balance
    _cp_options.enable_load_balance = True
    held = []
    try:
        for length in lengths:
            places = torch.arange(length, device=ctx.device)
            with context_parallel(mesh, buffers=[places], buffer_seq_dims=[0]):
                held.append(places.tolist())
    finally:
        _cp_options.enable_load_balance = before
    return held
