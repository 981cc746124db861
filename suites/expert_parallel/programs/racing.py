"""Tokens that go to their experts and back, forward and backward, for timing: routing is given, balanced or skewed.

The gate itself is left out. The weights that it would give the chosen experts are inputs, and get a gradient. There are
two batches in turn, each with a routing of its own.

A model of its own: what is checked elsewhere is small and returns everything, and this one fills a GPU and returns one
small number, so that nothing else is timed. ``test_racing.py`` compares each way with one device.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from pytest_gpuperf import Context, Infeasible
from suites.shared.experts import expert_exchange, lanes
from suites.shared.step import Step, Tensors, excerpt, gradient_of

Routing = Literal["balanced", "skewed"]

BATCHES = 2
"""In turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of the layer, and of a rank's tokens."""

    tokens: int
    """The number of tokens of a rank."""
    width: int
    hidden: int
    experts: int
    k: int
    headroom: float
    """An expert's capacity over the mean number of assignments."""
    dtype: torch.dtype

    @property
    def capacity(self) -> int:
        """Assignments that an expert takes from one rank."""
        return int(self.headroom * self.tokens * self.k / self.experts)

    @property
    def row(self) -> int:
        """Bytes of a token."""
        return self.width * self.dtype.itemsize

    def flop(self, assignments: int) -> float:
        """Floating-point operations of forward and backward of so many assignments: three times two products."""
        return 3.0 * 2 * 2 * assignments * self.width * self.hidden


@dataclass(frozen=True, slots=True)
class Load:
    """What a rank has in a step."""

    x: torch.Tensor
    weights: torch.Tensor
    chosen: torch.Tensor
    grad: torch.Tensor
    """The gradient of the output."""


def chosen_experts(sizes: Sizes, routing: Routing, rank: int, number: int) -> torch.Tensor:
    """The experts of a rank's tokens, T x k, on the CPU.

    Balanced: all experts get as many, and a token's experts are neighbours. Skewed: the expert of number e, from 1 on,
    is as likely as 1 / e (Zipf's law), so that the first rank has most to do.
    """
    if routing == "balanced":
        first = torch.arange(sizes.tokens) * sizes.k + rank + number
        return (first[:, None] + torch.arange(sizes.k)) % sizes.experts
    generator = torch.Generator().manual_seed(1000 * rank + number)
    likely = 1 / torch.arange(1, sizes.experts + 1, dtype=torch.float64)
    return torch.multinomial(likely.expand(sizes.tokens, -1), sizes.k, generator=generator)


def batch_of(ctx: Context, sizes: Sizes, routing: Routing, rank: int, number: int) -> Load:
    """A rank's tokens, on this rank's device; another rank and another number have others."""
    generator = torch.Generator(ctx.device).manual_seed(1000 * rank + number)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=sizes.dtype, device=ctx.device, generator=generator)

    return Load(
        normal(sizes.tokens, sizes.width),
        normal(sizes.tokens, sizes.k).softmax(-1),
        chosen_experts(sizes, routing, rank, number).to(ctx.device),
        normal(sizes.tokens, sizes.width),
    )


def expert(ctx: Context, sizes: Sizes, number: int, seed: int) -> Tensors:
    """The two matrices of an expert, the same on whatever rank; scaled so that activations are near 1."""
    generator = torch.Generator(ctx.device).manual_seed(seed * sizes.experts + number)
    shapes = {"first": (sizes.hidden, sizes.width), "second": (sizes.width, sizes.hidden)}
    return {
        name: torch.randn(shape, dtype=sizes.dtype, device=ctx.device, generator=generator).mul_((2 / shape[1]) ** 0.5)
        for name, shape in shapes.items()
    }


def train(ctx: Context, *, sizes: Sizes, routing: Routing, padded: bool, chunks: int, seed: int) -> Step[Tensors]:
    """A step of training without its optimizer; returns an excerpt of output and gradients.

    Args:
        ctx: the rank's context.
        sizes: of the layer.
        routing: where tokens go.
        padded: whether ranks send as many rows for each expert.
        chunks: parts of the tokens, of which one travels while another is computed.
        seed: of the experts.

    Raises:
        Infeasible: the ranks do not divide the experts.
    """
    if sizes.experts % ctx.world_size:
        raise Infeasible(f"{sizes.experts} experts make no {ctx.world_size} equal parts")
    local = sizes.experts // ctx.world_size
    own = [expert(ctx, sizes, ctx.rank * local + index, seed) for index in range(local)]
    parameters = nn.ParameterDict(
        {name: nn.Parameter(torch.stack([one[name] for one in own])) for name in ("first", "second")}
    )
    del own
    streams = lanes(ctx, chunks)
    batches = itertools.cycle([batch_of(ctx, sizes, routing, ctx.rank, number) for number in range(BATCHES)])

    def step() -> Tensors:
        batch = next(batches)
        x, weights = (tensor.detach().requires_grad_() for tensor in (batch.x, batch.weights))
        for parameter in parameters.values():
            parameter.grad = None
        output = expert_exchange(
            ctx,
            parameters,
            x,
            weights,
            batch.chosen,
            capacity=sizes.capacity,
            padded=padded,
            lanes=streams,
        )
        output.backward(batch.grad)
        leaves = {"input": x, "weights": weights, **parameters}
        return excerpt({"output": output, **{f"{name} gradient": gradient_of(leaf) for name, leaf in leaves.items()}})

    return step


def rows_between(sizes: Sizes, routing: Routing, ranks: int, number: int = 0) -> torch.Tensor:
    """How many assignments each rank (of the first dimension) sends to each, those beyond the capacity left out."""
    chosen = [chosen_experts(sizes, routing, rank, number).reshape(-1) for rank in range(ranks)]
    kept = torch.stack([torch.bincount(one, minlength=sizes.experts).clamp(max=sizes.capacity) for one in chosen])
    return kept.view(ranks, ranks, -1).sum(-1)
