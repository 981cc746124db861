"""A transformer's block split over R ranks, forward and backward, for timing; and the parts of such a step.

B sequences of S tokens, W features, H heads, F hidden features. Megatron-LM's split (arXiv 1909.08053, section 3):
heads and hidden features over the ranks, so that two sums over the ranks go forward and two backward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

from pytest_gpuperf import Context
from suites.shared.step import Step, gradient_of


def plan() -> dict[str, ParallelStyle]:
    """How each part is split.

    Attention's input is one DTensor for three projections: each of them would else sum its own gradient of it.
    """
    # In the same order on all ranks, which a set has not: each part is scattered from the first rank in its turn.
    columns = ("attention.query", "attention.key", "attention.value", "up")
    return {
        "attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
        **{name: ColwiseParallel() for name in columns},
        **{name: RowwiseParallel() for name in ("attention.output", "down")},
    }


SUMS = 4
"""The number of sums of B x S x W elements in a step.

Two come after attention and after the feed-forward layer, and two are of their inputs' gradients.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """The sizes of a block and of its input."""

    sequences: int
    length: int
    width: int
    heads: int
    hidden: int
    dtype: torch.dtype
    seed: int = 1

    @property
    def flop(self) -> float:
        """Floating-point operations of forward and backward, of all ranks together.

        2 a weight and token forward, 4 backward; causal attention multiplies S x S / 2 x W twice, backward four times.
        """
        weights = 4 * self.width**2 + 2 * self.width * self.hidden
        tokens = self.sequences * self.length
        return 3.0 * tokens * (2.0 * weights + 2.0 * self.length * self.width)

    @property
    def summed_bytes(self) -> int:
        """What each sum over the ranks is of."""
        return self.sequences * self.length * self.width * self.dtype.itemsize


class Heads(nn.Module):
    """Causal self-attention of so many features in all heads."""

    def __init__(self, shape: BlockShape, inner: int) -> None:
        super().__init__()
        self.head_dim = shape.width // shape.heads
        self.query, self.key, self.value = (nn.Linear(shape.width, inner, bias=False) for _ in range(3))
        self.output = nn.Linear(inner, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: torch.Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to its input; one of so many parts of their features."""

    def __init__(self, shape: BlockShape, parts: int = 1) -> None:
        super().__init__()
        self.attention = Heads(shape, shape.width // parts)
        self.up = nn.Linear(shape.width, shape.hidden // parts, bias=False)
        self.down = nn.Linear(shape.hidden // parts, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        output: torch.Tensor = x + self.down(functional.gelu(self.up(x)))
        return output


def whole(ctx: Context, shape: BlockShape, parts: int = 1) -> Block:
    """The block, with weights that are alike on all ranks."""
    with ctx.device:
        block = Block(shape, parts).to(shape.dtype)
    generator = torch.Generator(ctx.device).manual_seed(shape.seed)
    with torch.no_grad():
        for weight in block.parameters():
            weight.normal_(std=weight.shape[1] ** -0.5, generator=generator)
    return block


def inputs(ctx: Context, shape: BlockShape) -> tuple[torch.Tensor, torch.Tensor]:
    """The input and the gradient of the output, alike on all ranks."""
    generator = torch.Generator(ctx.device).manual_seed(shape.seed + 1)
    size = (shape.sequences, shape.length, shape.width)
    x, grad = (torch.randn(size, generator=generator, device=ctx.device).to(shape.dtype) for _ in range(2))
    return x.requires_grad_(), grad


def stepping(ctx: Context, shape: BlockShape, block: nn.Module) -> Step[list[torch.Tensor]]:
    """Forward and backward; returns the output and the gradient of the input."""
    x, grad = inputs(ctx, shape)

    def step() -> list[torch.Tensor]:
        x.grad = None
        block.zero_grad(set_to_none=True)
        output = block(x)
        output.backward(grad)
        return [output.detach(), gradient_of(x)]

    return step


def split(ctx: Context, *, shape: BlockShape) -> Step[list[torch.Tensor]]:
    """The block split over all ranks.

    Raises:
        ValueError: The ranks do not divide heads or hidden features.
    """
    for what, number in {"heads": shape.heads, "hidden features": shape.hidden}.items():
        if number % ctx.world_size:
            raise ValueError(f"{number} {what} cannot be split over {ctx.world_size} ranks: choose a multiple")
    return stepping(ctx, shape, parallelize_module(whole(ctx, shape), ctx.mesh((ctx.world_size,)), plan()))


def share(ctx: Context, *, shape: BlockShape) -> Step[list[torch.Tensor]]:
    """What one rank computes of it, and no sum: a block with its number of heads and features."""
    return stepping(ctx, shape, whole(ctx, shape, ctx.world_size))


def sums(ctx: Context, *, shape: BlockShape) -> Step[list[torch.Tensor]]:
    """The sums alone."""
    x, _ = inputs(ctx, shape)
    tensors = [x.detach().clone() for _ in range(SUMS)]

    def step() -> list[torch.Tensor]:
        for tensor in tensors:
            dist.all_reduce(tensor)
        return tensors

    return step
