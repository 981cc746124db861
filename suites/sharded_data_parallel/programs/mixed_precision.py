"""Master weights in float32 beside computation of lower precision: problems that this tells apart, in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from pytest_gpuperf import Context
from suites.shared.comparison import Results
from suites.shared.inputs import integers
from suites.shared.problems import Batch, Problem
from suites.shared.step import Tensors


class Precision(NamedTuple):
    """The dtype of the parameters, and those of computation and reduction where they are others."""

    dtype: torch.dtype
    compute: torch.dtype | None = None
    reduce: torch.dtype | None = None

    @property
    def policy(self) -> MixedPrecisionPolicy:
        """What ``fully_shard`` is told of it."""
        return MixedPrecisionPolicy(param_dtype=self.compute, reduce_dtype=self.reduce)

    @property
    def gathered(self) -> torch.dtype:
        """The dtype in which parameters are gathered and computation runs."""
        return self.compute or self.dtype

    @property
    def reduced(self) -> torch.dtype:
        """The dtype in which gradients are summed."""
        return self.reduce or self.gathered


FULL = [Precision(torch.float64), Precision(torch.float32)]
REDUCED_IN_FULL = [
    Precision(torch.float32, torch.bfloat16, torch.float32),
    Precision(torch.float32, torch.float16, torch.float32),
]
MIXED = [*REDUCED_IN_FULL, Precision(torch.float32, torch.bfloat16), Precision(torch.float32, torch.float16)]

# bfloat16 holds whole numbers up to 256, and multiples of R, a power of 2, up to 256 R. Gradients are such multiples
# before their mean is taken. With 3 features, and R * rows <= 4, in units of R where a gradient's bound is given:
# - Hidden layers, one step of one microbatch: hidden features are at most 3 * 4 + 2 = 14, outputs 3 * 28 + 2 + 3 * 4 =
#   98, hidden gradients 3 * 4 = 12, input gradients 3 * 24 + 3 * 4 = 84, a weight's gradient rows * max(2 * 14, 12 * 2)
#   = 28 rows, its sum over the ranks 28 * 4 = 112.
# - No such layers, 2 steps of up to 2 microbatches: a weight's gradient is rows * 2 * 2 of a microbatch, at most 32 in
#   sum over microbatches and ranks. The second step's weights are at most 2 + 32 = 34, its outputs and input gradients
#   3 * 2 * 34 = 204. The momentum is at most 64, the last weights, at a rate of 2, 34 + 128 = 162.
MIXED_FEATURES = 3
MIXED_ROWS = 4
"""The most rows of all ranks together, in a microbatch."""

# Lower precision rounds it off whole numbers other than 0, and so computes with these; float32 keeps it. (Around 1 the
# numbers of bfloat16 are 2**-8 apart or more, those of float16 2**-11; float32 holds 162 + 2**-13.)
FRACTION = 2.0**-13


def fractions(problem: Problem, expected: Results) -> Tensors:
    """What can be added to the parameters: computation rounds it off in each step, and updates leave it as it is.

    Where a parameter is 0 at the beginning of a step there is nothing: 0 plus a fraction is not rounded.
    """
    initial = problem.parameters()
    added = {}
    for name, value in initial.items():
        starts = [value, *(expected[0][f"step {step}, {name}"] for step in range(1, problem.steps))]
        never_zero = torch.stack(starts).ne(0).all(0)
        added[name] = FRACTION * value.sign() * never_zero
    return added


def plus(parameters: Tensors, added: Tensors) -> Tensors:
    """The parameters with these fractions."""
    return {name: value + added[name] for name, value in parameters.items()}


def add_to_results(results: Results, added: Tensors) -> None:
    """To the parameters after each update."""
    for result in results:
        for name in result:
            parameter = name.partition(", ")[2]
            if parameter in added:
                result[name] = result[name] + added[parameter]


LONG_ROWS = 60
GRID = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LongGradients(Problem):
    """A problem without hidden layers, whose gradients only sums over microbatches or ranks make too long for bfloat16.

    Inputs are 1 and 2, with the sign of their feature, output gradients R and 2R: over 60 rows a microbatch's
    gradient is a multiple of R up to 240 R, which 8 bits hold. The sum of 2 microbatches, up to 480 R, does not fit
    in them, nor does the mean over R <= 4 ranks, up to 480 R = 1920. Initial weights are what the first mean leaves
    over the nearest multiple of 64, at most 32, so that the first update makes them multiples of 64, up to 30 * 64.
    With 3 features outputs and, in units of R, input gradients are at most 3 * 2 * 32 = 192, then 180 * 64: all fit
    in 8 bits, and float16 holds 4 * 180 * 64 < 65504. float32 holds the momentum, up to 3840, and the weights that
    a rate of 2 leaves.
    """

    inputs: int = 3
    hidden: int = 0
    outputs: int = 3
    rows: int = LONG_ROWS
    microbatches: int = 2
    steps: int = 2
    dtype: torch.dtype = torch.float32

    def parameters(self, rank: int = 0) -> Tensors:
        """The initial ones, the same on all ranks."""
        gradient = torch.stack([_gradient(self.batches(other)[0]) for other in range(self.world_size)]).mean(0)
        return {"shortcut.weight": gradient - GRID * (gradient / GRID).round()}

    def batches(self, rank: int) -> list[Batch]:
        """The rank's inputs and output gradients of each step."""
        shape = (self.steps, self.microbatches, self.rows)
        seeds = [self.seed * 1024 + rank * 2 + part for part in range(2)]
        x, grad = (
            integers((*shape, features), self.dtype, seed=seed, low=1, high=2)
            for features, seed in zip((self.inputs, self.outputs), seeds, strict=True)
        )
        signs = torch.tensor([(-1.0) ** feature for feature in range(self.inputs)], dtype=self.dtype)
        return list(zip(x * signs, self.world_size * grad, strict=True))

    def sums_of_microbatches(self, rank: int) -> list[torch.Tensor]:
        """In each step, the rank's own gradients."""
        return [_gradient(batch) for batch in self.batches(rank)]


def _gradient(batch: Batch) -> torch.Tensor:
    x, grad = (part.flatten(0, 1) for part in batch)
    return grad.T @ x


class _Sum(nn.Module):
    """Adds what it gets by name to what it gets by place, by a weight; it notes down the dtypes of both."""

    seen: tuple[torch.dtype, torch.dtype]

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, *, other: torch.Tensor) -> torch.Tensor:
        self.seen = x.dtype, other.dtype
        return x * self.weight + other


def seen_dtypes(ctx: Context, *, policy: MixedPrecisionPolicy) -> list[torch.dtype]:
    """The dtypes of a module's inputs, by place and by name, and of its output, if it is given float32."""
    module = _Sum().to(ctx.device)
    fully_shard(module, mesh=ctx.mesh((ctx.world_size,)), mp_policy=policy)
    output = module(torch.ones(4, device=ctx.device), other=torch.ones(4, device=ctx.device))
    return [*module.seen, output.dtype]
