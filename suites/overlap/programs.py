"""A training step's forward and backward with the mean of the ranks' gradients, by two ways; and its parts.

L layers of W x W weights, R ranks, B rows of input on each. Weights are the same on all ranks, inputs
differ. Every step starts without gradients and returns them, in the order of the layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context

BUCKET_MIB = 25.0  # DistributedDataParallel's default bucket_cap_mb, which counts in MiB
LEAST_SHARE = 1e-3  # of the communication; what is closer to nothing exposed drowns in the noise of the times

Step = Callable[[], list[torch.Tensor]]
Problem = tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]


def problem(ctx: Context, *, layers: int, width: int, rows: int, dtype: torch.dtype, seed: int) -> Problem:
    """Weights, the rank's input, and the gradient of its loss by its output.

    Scaled so that activations are near 1 in every layer, and so are the elements of every gradient: He's
    initialization keeps both through ReLUs, and a row's share of a gradient is 1 / sqrt(B).
    """
    same, own = torch.Generator(ctx.device).manual_seed(seed), ctx.generator()
    options = {"dtype": dtype, "device": ctx.device}
    weights = [
        torch.randn(width, width, generator=same, **options).mul_((2 / width) ** 0.5) for _ in range(layers)
    ]
    x = torch.randn(rows, width, generator=own, **options)
    return weights, x, torch.randn(rows, width, generator=own, **options).mul_(rows**-0.5)


def _module(weights: Sequence[torch.Tensor]) -> nn.Module:
    linears = []
    for weight in weights:
        # On no device at first: to initialize weights that are replaced would take as long as to draw them.
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(weight)
        linears.append(linear)
    pairs = itertools.chain.from_iterable((linear, nn.ReLU()) for linear in linears)
    return nn.Sequential(*list(pairs)[:-1])


def _forward_backward(module: nn.Module, x: torch.Tensor, grad_output: torch.Tensor) -> list[torch.Tensor]:
    # None, not zero, in every program: backward then writes gradients, and does not add them to zeros.
    module.zero_grad(set_to_none=True)
    module(x).backward(grad_output)
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def buckets(tensors: Sequence[torch.Tensor], bucket_mib: float = BUCKET_MIB) -> list[list[torch.Tensor]]:
    """The tensors from the last to the first, as backward makes gradients; a bucket closes once it is full.

    This is DistributedDataParallel's own rule: a tensor larger than a bucket gets one to itself.
    """
    capacity = int(bucket_mib * 2**20)
    filled: list[list[torch.Tensor]] = []
    room = 0
    for tensor in reversed(tensors):
        if room <= 0:
            filled.append([])
            room = capacity
        filled[-1].append(tensor)
        room -= tensor.nbytes
    return filled


def compute(
    ctx: Context,
    *,
    layers: int,
    width: int,
    rows: int,
    dtype: torch.dtype,
    seed: int,
    bucket_mib: float = BUCKET_MIB,
) -> Step:
    """Forward and backward alone: each rank keeps its own gradients."""
    weights, x, grad_output = problem(ctx, layers=layers, width=width, rows=rows, dtype=dtype, seed=seed)
    module = _module(weights)
    return lambda: _forward_backward(module, x, grad_output)


def communication(
    ctx: Context,
    *,
    layers: int,
    width: int,
    rows: int,
    dtype: torch.dtype,
    seed: int,
    bucket_mib: float = BUCKET_MIB,
) -> Step:
    """The all_reduces alone, of tensors like the gradients."""
    own = ctx.generator()
    gradients = [
        torch.randn(width, width, generator=own, dtype=dtype, device=ctx.device) for _ in range(layers)
    ]

    def step() -> list[torch.Tensor]:
        _average(gradients, bucket_mib)
        return gradients

    return step


def all_reduce_after_backward(
    ctx: Context,
    *,
    layers: int,
    width: int,
    rows: int,
    dtype: torch.dtype,
    seed: int,
    bucket_mib: float = BUCKET_MIB,
) -> Step:
    """Backward to its end, then one all_reduce for each bucket."""
    weights, x, grad_output = problem(ctx, layers=layers, width=width, rows=rows, dtype=dtype, seed=seed)
    module = _module(weights)

    def step() -> list[torch.Tensor]:
        gradients = _forward_backward(module, x, grad_output)
        _average(gradients, bucket_mib)
        return gradients

    return step


def _average(gradients: Sequence[torch.Tensor], bucket_mib: float) -> None:
    """All_reduces each bucket as one flat tensor, in place where it holds a single gradient."""
    for bucket in buckets(gradients, bucket_mib):
        flat = bucket[0].view(-1) if len(bucket) == 1 else torch.cat([part.view(-1) for part in bucket])
        dist.all_reduce(flat, dist.ReduceOp.AVG)
        if len(bucket) > 1:
            for part, averaged in zip(bucket, flat.split([part.numel() for part in bucket]), strict=True):
                part.copy_(averaged.view_as(part))


def all_reduce_during_backward(
    ctx: Context,
    *,
    layers: int,
    width: int,
    rows: int,
    dtype: torch.dtype,
    seed: int,
    bucket_mib: float = BUCKET_MIB,
) -> Step:
    """DistributedDataParallel: a bucket's all_reduce starts when backward has made its last gradient."""
    weights, x, grad_output = problem(ctx, layers=layers, width=width, rows=rows, dtype=dtype, seed=seed)
    module = DistributedDataParallel(_module(weights), bucket_cap_mb=bucket_mib, gradient_as_bucket_view=True)
    return lambda: _forward_backward(module, x, grad_output)


def largest_gradient(
    ctx: Context, *, layers: int, width: int, rows: int, dtype: torch.dtype, seed: int
) -> float:
    """The largest element, without its sign, of the rank's own gradients."""
    step = compute(ctx, layers=layers, width=width, rows=rows, dtype=dtype, seed=seed)
    return max(gradient.abs().max().item() for gradient in step())


def reduction_error(world_size: int, dtype: torch.dtype, largest: float) -> float:
    """How far two averages of the same gradients may be apart, each summed in ``dtype`` in an order of its own.

    An element's sum over R ranks takes R - 1 additions, each of which rounds by at most u of a partial sum
    that is no larger than R ranks' shares of |g| <= ``largest``, with u half of the dtype's epsilon (round
    to nearest); one more rounding is the division. Both averages may be off by that. Higham, Accuracy and
    Stability of Numerical Algorithms, section 4.2: R roundings make R u / (1 - R u).
    """
    roundings = world_size * torch.finfo(dtype).eps / 2
    return 2 * roundings / (1 - roundings) * largest


def exposed_share(*, together: float, compute: float, communication: float) -> float:
    """The share of the communication that the step waits for: 0 all hidden, 1 none, above 1 worse than in turn.

    (together - compute) / communication, all in seconds. Where nothing is exposed, noise makes the
    difference negative as often as not; such a share is no figure to be compared with another, and
    ``LEAST_SHARE`` stands for all of them.
    """
    return max(LEAST_SHARE, (together - compute) / communication)
