"""Tokens in the orders of torch's load balancers, which share out the work of documents and of masks by blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask

from pytest_gpuperf import Context
from suites.shared.step import Tensors


def ordered(
    ctx: Context, *, tokens: torch.Tensor, documents: list[list[int]] | None, reach: torch.Tensor, block: int
) -> Tensors:
    """What the rank has of the tokens, and what it brings together.

    Args:
        ctx: the rank's context.
        tokens: B x S x D.
        documents: lengths of each sequence's documents; None for the order by a mask's blocks.
        reach: how many keys each query of a sequence sees, B x S.
        block: tokens in a block of the mask.
    """
    # Here, since this module travels to the ranks by value, and torch's options with it.
    from torch.distributed.tensor.experimental import _attention
    from torch.distributed.tensor.experimental._context_parallel import _attention as options

    mesh = ctx.mesh((ctx.world_size,))
    batch, length = reach.shape
    reach = reach.to(ctx.device)
    balancer: Any
    if documents is None:
        mask = create_block_mask(
            lambda b, h, q, k: k < reach[b, q], batch, 1, length, length, device=ctx.device.type, BLOCK_SIZE=block
        )
        balancer = _attention._PTRRLoadBalancer(mask, ctx.world_size)
    else:
        balancer = _attention._PerDocumentHeadTailLoadBalancer(documents, ctx.world_size, ctx.device)
    before = options._dispatch_mode, options._cp_options.enable_load_balance
    try:
        (held,) = _attention._context_parallel_shard(mesh, [tokens.to(ctx.device)], [1], balancer)
        assert isinstance(held, torch.Tensor)
        (joined,) = _attention.context_parallel_unshard(mesh, [held], [1], balancer)
    finally:
        options._dispatch_mode, options._cp_options.enable_load_balance = before
    return {"held": held.clone(), "together": joined}
