"""Buffers that torch's ``context_parallel`` cuts along the sequence, and brings together again."""

from __future__ import annotations

import torch

from pytest_gpuperf import Context
from suites.context_parallel.programs.attention import Layout
from suites.shared.step import Tensors


def cut_and_joined(ctx: Context, *, tokens: torch.Tensor, places: torch.Tensor, layout: Layout) -> Tensors:
    """What the rank has of two buffers within the context and after it, and the tokens that it brings together.

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
    return {"tokens": held, "tokens afterwards": whole, "places": kept, "tokens together": joined}
