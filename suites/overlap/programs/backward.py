"""Forward and backward with the mean of the ranks' gradients, taken in two ways; and the parts of such a step.

L layers of W x W weights, R ranks, B rows of input on each. Weights are the same on all ranks, inputs
differ. Every step starts without gradients and returns them, in the order of the layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear, relu
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context, MiB
from suites.shared.step import Step

BUCKET_MIB = 25.0  # DistributedDataParallel's default bucket_cap_mb, which counts in MiB

MlpProblem = tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """A multilayer perceptron, ReLUs between its layers, and the batch that it is trained on."""

    layers: int
    width: int
    """In and out of each layer."""
    rows: int
    """The number of rows of the input, on each rank."""
    dtype: torch.dtype
    seed: int
    """The seed of the weights."""

    @property
    def flop(self) -> float:
        """Floating-point operations of forward and backward on a rank; the first layer's input has no gradient."""
        return 2.0 * self.rows * self.width**2 * (3 * self.layers - 1)

    def __post_init__(self) -> None:
        """Refuses what has no gradients."""
        if min(self.layers, self.width, self.rows) < 1:
            raise ValueError(
                f"layers, width and rows must be 1 or more, got {self.layers}, {self.width} and {self.rows}"
            )


def problem(ctx: Context, *, mlp: Mlp, turn: int = 0) -> MlpProblem:
    """Weights, the rank's input, and the gradient of its loss by its output; these two are others at each turn.

    Scaled so that the elements of activations and gradients are near 1 in every layer: He's initialization
    carries both through the ReLUs, and each of B rows gives a gradient a share of 1 / sqrt(B).
    """
    same, own = torch.Generator(ctx.device).manual_seed(mlp.seed), ctx.generator()
    weights = [_normal((mlp.width, mlp.width), mlp.dtype, same).mul_((2 / mlp.width) ** 0.5) for _ in range(mlp.layers)]
    for _ in range(turn + 1):
        x, grad_output = (_normal((mlp.rows, mlp.width), mlp.dtype, own) for _ in range(2))
    return weights, x, grad_output.mul_(mlp.rows**-0.5)


def batches(ctx: Context, *, mlp: Mlp, turns: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and gradients of so many turns, over and over."""
    return itertools.cycle([problem(ctx, mlp=mlp, turn=turn)[1:] for turn in range(turns)])


def _normal(shape: tuple[int, int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device=generator.device, generator=generator)


class _Network(nn.Module):
    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *hidden, last = self.weights
        for weight in hidden:
            x = relu(linear(x, weight))
        return linear(x, last)


def network(weights: Sequence[torch.Tensor]) -> nn.Module:
    """The perceptron with these weights."""
    return _Network(weights)


def forward_backward(module: nn.Module, x: torch.Tensor, grad_output: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of the module's parameters."""
    # None, not zero, in every program: backward then writes gradients, and does not add them to zeros.
    module.zero_grad(set_to_none=True)
    module(x).backward(grad_output)
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def buckets(tensors: Sequence[torch.Tensor], bucket_mib: float = BUCKET_MIB) -> list[list[torch.Tensor]]:
    """The tensors from the last to the first, as backward makes gradients; a bucket closes once it is full.

    This is DistributedDataParallel's own rule: a tensor larger than a bucket gets one to itself.
    """
    capacity = int(bucket_mib * MiB)
    filled: list[list[torch.Tensor]] = []
    room = 0
    for tensor in reversed(tensors):
        if room <= 0:
            filled.append([])
            room = capacity
        filled[-1].append(tensor)
        room -= tensor.nbytes
    return filled


def compute(ctx: Context, *, mlp: Mlp, turns: int = 1) -> Step[list[torch.Tensor]]:
    """Forward and backward alone: each rank keeps its own gradients."""
    weights, *_ = problem(ctx, mlp=mlp)
    module, coming = network(weights), batches(ctx, mlp=mlp, turns=turns)
    return lambda: forward_backward(module, *next(coming))


def communication(ctx: Context, *, mlp: Mlp, bucket_mib: float = BUCKET_MIB) -> Step[list[torch.Tensor]]:
    """The all_reduces alone, of tensors like the gradients."""
    own = ctx.generator()
    gradients = [_normal((mlp.width, mlp.width), mlp.dtype, own) for _ in range(mlp.layers)]

    def step() -> list[torch.Tensor]:
        _average(gradients, bucket_mib)
        return gradients

    return step


def all_reduce_after_backward(
    ctx: Context, *, mlp: Mlp, bucket_mib: float = BUCKET_MIB, turns: int = 1
) -> Step[list[torch.Tensor]]:
    """Backward to its end, then one all_reduce for each bucket."""
    weights, *_ = problem(ctx, mlp=mlp)
    module, coming = network(weights), batches(ctx, mlp=mlp, turns=turns)

    def step() -> list[torch.Tensor]:
        gradients = forward_backward(module, *next(coming))
        _average(gradients, bucket_mib)
        return gradients

    return step


def _average(gradients: Sequence[torch.Tensor], bucket_mib: float) -> None:
    """All_reduces each bucket as one flat tensor; in place, and without a copy, where it is one gradient."""
    for bucket in buckets(gradients, bucket_mib):
        flat = bucket[0].view(-1) if len(bucket) == 1 else torch.cat([part.view(-1) for part in bucket])
        dist.all_reduce(flat, dist.ReduceOp.AVG)
        if len(bucket) > 1:
            for part, averaged in zip(bucket, flat.split([part.numel() for part in bucket]), strict=True):
                part.copy_(averaged.view_as(part))


def all_reduce_during_backward(
    ctx: Context, *, mlp: Mlp, bucket_mib: float = BUCKET_MIB, turns: int = 1
) -> Step[list[torch.Tensor]]:
    """DistributedDataParallel: a bucket's all_reduce starts when backward has made its last gradient."""
    weights, *_ = problem(ctx, mlp=mlp)
    coming = batches(ctx, mlp=mlp, turns=turns)
    # init_sync: the weights are the same on all ranks already.
    module = DistributedDataParallel(
        network(weights), bucket_cap_mb=bucket_mib, gradient_as_bucket_view=True, init_sync=False
    )
    return lambda: forward_backward(module, *next(coming))


def all_reduce_between_microbatches(
    ctx: Context, *, mlp: Mlp, microbatches: int = 2, turns: int = 1
) -> Step[list[torch.Tensor]]:
    """Backward of one part of the rows while the gradients of the part before are averaged; they are added up last.

    Each part has gradients as large as the whole batch's: so many times the bytes are sent.
    """
    weights, *_ = problem(ctx, mlp=mlp)
    module, coming = network(weights), batches(ctx, mlp=mlp, turns=turns)

    def step() -> list[torch.Tensor]:
        started = []
        for part in zip(*(whole.chunk(microbatches) for whole in next(coming)), strict=True):
            gradients = forward_backward(module, *part)
            works = [dist.all_reduce(gradient, dist.ReduceOp.AVG, async_op=True) for gradient in gradients]
            started.append((gradients, works))
        for _, works in started:
            for work in works:
                assert work is not None
                work.wait()
        (total, _), *others = started
        for gradients, _ in others:
            torch._foreach_add_(total, gradients)
        return total

    return step


WAYS: Mapping[str, Callable[..., Step[list[torch.Tensor]]]] = {
    "after backward": all_reduce_after_backward,
    "during backward": all_reduce_during_backward,
    "between microbatches": all_reduce_between_microbatches,
}
SAMPLED = 256
"""Elements of each gradient that stand for all of them."""


def sample(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Some elements of each gradient, spread over it; a row for each."""
    return torch.stack([gradient.view(-1)[:: max(1, gradient.numel() // SAMPLED)][:SAMPLED] for gradient in gradients])


def sampled(ctx: Context, *, mlp: Mlp, way: str, **settings: float) -> Step[torch.Tensor]:
    """One of the ways; its step returns a sample of the gradients, which are too large to be kept for each way."""
    step = WAYS[way](ctx, mlp=mlp, **settings)
    return lambda: sample(step())


def largest_gradient(ctx: Context, *, mlp: Mlp) -> float:
    """The largest magnitude among the elements of the rank's own gradients."""
    return max(gradient.abs().max().item() for gradient in compute(ctx, mlp=mlp)())


def reduction_error(world_size: int, dtype: torch.dtype, largest: float) -> float:
    """How far two averages of the same gradients may be apart, each summed in ``dtype`` in an order of its own.

    An element's sum over R ranks takes R - 1 additions, each of which rounds by at most u of a partial sum
    that is no larger than R ranks' shares of |g| <= ``largest``, with u half of the dtype's epsilon (round
    to nearest); one more rounding is the division. Both averages may be off by that. Higham, Accuracy and
    Stability of Numerical Algorithms, section 4.2: R roundings make R u / (1 - R u).
    """
    roundings = world_size * torch.finfo(dtype).eps / 2
    return 2 * roundings / (1 - roundings) * largest
