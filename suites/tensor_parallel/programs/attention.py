"""Attention split over R ranks by heads.

B batch, S tokens, W width, D features of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional

from pytest_gpuperf import Context
from suites.shared.inputs import Given
from suites.shared.sharding import parallelized, parameters_on_device
from suites.shared.step import Step, Tensors
from suites.tensor_parallel.programs.linear_layers import linear
from suites.tensor_parallel.programs.steps import layer_steps


class Attention(nn.Module):
    """Self-attention without bias: several query heads may share a key and value head.

    Its projections may be split by heads: it computes with those that they give it.
    """

    def __init__(self, parameters: Tensors, *, head_dim: int, causal: bool):
        super().__init__()
        self.q, self.k, self.v, self.o = (linear({"weight": parameters[f"{name}.weight"]}) for name in "qkvo")
        self.head_dim = head_dim
        self.causal = causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From [B, S, W] to the same."""
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for projection in (self.q, self.k, self.v)
        )
        heads = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=query.shape[1] != key.shape[1]
        )
        mixed: torch.Tensor = self.o(heads.transpose(1, 2).flatten(2))
        return mixed


def attention(
    ctx: Context,
    *,
    given: Sequence[Given],
    head_dim: int,
    causal: bool,
    share_kv_heads: bool = False,
) -> Step[Tensors]:
    """Each rank computes some of the heads; the products with the output's projection are summed over the ranks.

    Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3.

    Args:
        ctx: the rank's context.
        given: to each step in turn: the input, [B, S, W], the gradient of the output, and ``q.weight``, ``k.weight``,
            ``v.weight`` and ``o.weight``.
        head_dim: features of a head; the weights' shapes then tell how many there are.
        causal: whether tokens see only those before them and themselves.
        share_kv_heads: where there are fewer key and value heads than ranks, gather them, and let several ranks use
            the same one. They are refused otherwise.
    """
    parameters = given[0].parameters
    heads, kv_heads = (parameters[f"{name}.weight"].shape[0] // head_dim for name in "qk")
    shared = share_kv_heads and kv_heads < ctx.world_size
    for name, number in {"query": heads, "key and value": kv_heads}.items():
        whole, parts = (ctx.world_size, number) if shared and name != "query" else (number, ctx.world_size)
        if whole % parts:
            raise ValueError(
                f"{number} {name} heads cannot be split over {ctx.world_size} ranks: one must divide the other, and "
                "fewer key and value heads than ranks need share_kv_heads=True"
            )
    kv_style = ColwiseParallel(output_layouts=Replicate(), use_local_output=False) if shared else ColwiseParallel()
    module = parallelized(
        ctx,
        Attention(parameters_on_device(ctx, parameters), head_dim=head_dim, causal=causal),
        {"q": ColwiseParallel(), "k": kv_style, "v": kv_style, "o": RowwiseParallel()},
    )
    if shared:
        first = ctx.rank * kv_heads // ctx.world_size * head_dim
        for projection in (module.k, module.v):
            projection.register_forward_hook(
                lambda _module, _inputs, gathered: gathered.to_local(grad_placements=[Partial()]).narrow(
                    -1, first, head_dim
                )
            )
    return layer_steps(ctx, module, given)
