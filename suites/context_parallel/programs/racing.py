"""Causal attention over a split sequence, forward and backward, for timing.

All ways attend to the same sequence. In another layout a rank has other tokens, so a step returns rows of the whole
sequence, which the ranks bring together by one small sum.

A model of its own: what is checked elsewhere is small and returns everything, and this one fills a GPU and returns one
small number, so that nothing else is timed. ``test_racing.py`` compares each way with one device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Infeasible
from suites.context_parallel.programs.attention import (
    SEQUENCE,
    Layout,
    all_gather_attention,
    attend,
    ordered_ulysses_attention,
    positions,
    ring_attention,
    torch_ring_attention,
)
from suites.shared.step import Step, Tensors, excerpt

Kind = Literal["ring", "ring by hand", "all-gather", "Ulysses"]

BATCHES = 2
"""In turn."""
ROWS = 64
"""Tokens of which a step returns something, at most twice as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of the attention."""

    heads: int
    kv_heads: int
    features: int
    """The number of features of a head."""
    dtype: torch.dtype

    def flop(self, tokens: int) -> float:
        """The floating-point operations of forward and backward.

        Each head takes three times two products, of which the mask leaves half.
        """
        return 3.0 * 2 * tokens**2 * self.heads * self.features

    def gathered(self, tokens: int, ranks: int) -> int:
        """Bytes that come to a rank by gathering keys and values, and that leave it by summing their gradients up."""
        return 2 * (ranks - 1) * tokens // ranks * 2 * self.kv_heads * self.features * self.dtype.itemsize

    def swapped(self, tokens: int, ranks: int) -> int:
        """Bytes that a rank sends in Ulysses' all-to-alls: of query, key, value and output, forward and backward."""
        of_token = (2 * self.heads + 2 * self.kv_heads) * self.features * self.dtype.itemsize
        return 2 * (ranks - 1) * (tokens // ranks) * of_token // ranks

    def hidden_from(self, flops: float, rate: float) -> float:
        """Tokens of a rank from which on its products take as long as the next keys and values do.

        n tokens send 2 n K D numbers of 2 bytes at ``rate``, and compute 4 n^2 H D / 2 at ``flops`` under a causal mask
        whose work is balanced: n = 2 flops / rate * K / H.
        """
        return self.dtype.itemsize * flops / rate * self.kv_heads / self.heads


def drawn(sizes: Sizes, tokens: int, seed: int, device: torch.device) -> list[Tensors]:
    """Query, key, value and the gradient of the output of the whole sequence, of each batch; alike on all ranks."""
    generator = torch.Generator(device).manual_seed(seed)
    heads = {"query": sizes.heads, "key": sizes.kv_heads, "value": sizes.kv_heads, "grad": sizes.heads}
    return [
        {
            name: torch.randn(1, count, tokens, sizes.features, dtype=sizes.dtype, device=device, generator=generator)
            for name, count in heads.items()
        }
        for _ in range(BATCHES)
    ]


def train(
    ctx: Context, *, way: Kind, layout: Layout, sizes: Sizes, length: int, seed: int, flash: bool = True
) -> Step[Tensors]:
    """Output and gradients; a step returns an excerpt of some tokens' rows, the same on all ranks.

    Args:
        ctx: the rank's context.
        way: how ranks attend to each other's tokens.
        layout: which tokens they hold.
        sizes: of the attention.
        length: of the sequence, in tokens.
        seed: of all numbers.
        flash: whether torch must take the flash kernel, on GPUs; it is faster with others if it may choose.

    Raises:
        Infeasible: the ranks do not divide the sequence or the heads, or the way needs a GPU.
    """
    if way == "Ulysses" and sizes.kv_heads % ctx.world_size:
        raise Infeasible(f"{sizes.kv_heads} heads of keys make no {ctx.world_size} equal parts")
    if way == "ring" and ctx.device.type != "cuda":
        raise Infeasible("torch's ring has kernels for CUDA alone")
    try:
        held = positions(length, ctx.world_size, layout)
    except ValueError as error:
        raise Infeasible(str(error)) from error
    first, *later = drawn(sizes, length, seed, ctx.device)
    given: dict[str, Any] = {**first, "later": later, "causal": True, "layout": layout}
    if way == "ring":
        step = torch_ring_attention(ctx, rotation="alltoall", kernel="flash", **given)
    elif way == "all-gather":
        step = attend(ctx, attention=all_gather_attention(layout), **given)
    else:
        step = attend(ctx, attention=ring_attention if way == "ring by hand" else ordered_ulysses_attention, **given)
    told = Rows(held[ctx.rank], length, ctx.device)
    if flash and ctx.device.type == "cuda":
        step = in_flash(step)
    return lambda: excerpt(told.together(ctx, step()))


def in_flash(step: Step[Tensors]) -> Step[Tensors]:
    """Returns the same step with the flash kernel, so that ways differ by what they send, and not by their kernels."""
    # Here, since this module travels to the ranks by value, and torch 2.11's SDPBackend cannot.
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def within() -> Tensors:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return step()

    return within


class Rows:
    """Some tokens of the sequence, and which of them a rank holds."""

    def __init__(self, held: torch.Tensor, tokens: int, device: torch.device) -> None:
        """Finds them.

        Args:
            held: the rank's tokens, in its order.
            tokens: of the sequence.
            device: of what is given later.
        """
        self.count = len(rows_of(tokens))
        match = held[None] == rows_of(tokens)[:, None]
        there, here = match.nonzero(as_tuple=True)
        self.there, self.here = there.to(device), here.to(device)

    def together(self, ctx: Context, results: Tensors) -> Tensors:
        """The rows of all ranks' results, by one sum over the ranks; each row is of one rank."""
        widths = [tensor.shape[1] * tensor.shape[3] for tensor in results.values()]
        found = torch.zeros(self.count, sum(widths), dtype=next(iter(results.values())).dtype, device=ctx.device)
        mine = [
            tensor[0].index_select(SEQUENCE - 1, self.here).transpose(0, 1).flatten(1) for tensor in results.values()
        ]
        found[self.there] = torch.cat(mine, 1)
        dist.all_reduce(found, group=ctx.group)
        return dict(zip(results, found.split(widths, 1), strict=True))


def rows_of(tokens: int) -> torch.Tensor:
    """Evenly spread tokens, with the last one, which sees all others."""
    stride = max(1, tokens // ROWS) | 1
    return torch.arange(tokens - 1, -1, -stride).flip(0)
