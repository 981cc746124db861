"""DistributedDataParallel averaging float32 gradients over R ranks, with and without a hook that compresses them.

All are the same DistributedDataParallel: what is compared is what a user changes, one call of
``register_comm_hook``. The timed model has no arithmetic. Backward hands over gradients that are there already,
so a step is DistributedDataParallel's own work: the copy of the gradients into buckets, the casts, the
all_reduces.
"""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context, MiB
from suites.compression.programs.quantized import FLOAT8, INT8, START, Quantized, Quantizer, quantized_hook
from suites.compression.programs.wire import traffic_of_callbacks_too
from suites.shared.step import Step
from suites.shared.traffic import ring_bytes

Gradients = Callable[[Context], list[torch.Tensor]]
Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]

# Unit roundoffs: the largest relative error of rounding to nearest.
BFLOAT16_ROUNDOFF = torch.finfo(torch.bfloat16).eps / 2  # 2**-8, of a significand of 8 bits
FLOAT16_ROUNDOFF = torch.finfo(torch.float16).eps / 2  # 2**-11
FLOAT32_ROUNDOFF = torch.finfo(torch.float32).eps / 2  # 2**-24


class _HandOver(torch.autograd.Function):
    """A function of its parameters whose gradients are given."""

    @staticmethod
    def forward(ctx: Any, given: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        ctx.given = given
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Aliases, which autograd takes as they are; a tensor that somebody else holds too it would copy first.
        return (None, *(gradient.detach() for gradient in ctx.given))


class GivenGradients(nn.Module):
    """A module whose backward does nothing but hand over the gradients that it was made with."""

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros_like(gradient) for gradient in gradients)
        self._gradients = gradients

    def forward(self) -> torch.Tensor:
        """Zero."""
        output: torch.Tensor = _HandOver.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._gradients, *self.weights
        )
        return output


def uniform(ctx: Context, *, layers: int, width: int) -> list[torch.Tensor]:
    """The rank's own float32 gradients of so many square layers, between -1 and 1."""
    generator = ctx.generator()
    shape = (width, width)
    return [torch.rand(shape, device=ctx.device, generator=generator).mul_(2).sub_(1) for _ in range(layers)]


def to_bfloat16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PyTorch's ``bf16_compress_hook``; builds without NCCL refuse it by its name, though gloo can do it."""
    return bf16_compress_hook(state, bucket)


def average(
    ctx: Context,
    *,
    gradients: Gradients,
    hook: Hook | None,
    state: Callable[[], Any] | None = None,
    bucket_cap_mb: float | None = None,
) -> Step[list[torch.Tensor]]:
    """The mean over the ranks of the gradients that ``gradients(ctx)`` gives each of them.

    Args:
        ctx: the rank's context.
        gradients: the rank's gradients by its context.
        hook: what exchanges them; None for DistributedDataParallel's own all_reduce.
        state: makes the hook's first argument.
        bucket_cap_mb: of DistributedDataParallel, its own by default.
    """
    model = DistributedDataParallel(
        GivenGradients(gradients(ctx)),
        gradient_as_bucket_view=True,
        init_sync=False,  # parameters are zero on every rank already
        bucket_cap_mb=bucket_cap_mb,
    )
    if hook is not None:
        model.register_comm_hook(None if state is None else state(), hook)
    parameters = list(model.parameters())

    def step() -> list[torch.Tensor]:
        model.zero_grad(set_to_none=True)
        model().backward()
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    return step


def average_in_float32(ctx: Context, *, gradients: Gradients) -> Step[list[torch.Tensor]]:
    """Four bytes of each gradient cross the links."""
    return average(ctx, gradients=gradients, hook=None)


def average_in_bfloat16(ctx: Context, *, gradients: Gradients) -> Step[list[torch.Tensor]]:
    """Two bytes of each gradient cross the links; both casts are part of the step."""
    return average(ctx, gradients=gradients, hook=to_bfloat16)


def average_quantized(
    ctx: Context, *, gradients: Gradients, quantizer: Quantizer, **state: Any
) -> Step[list[torch.Tensor]]:
    """One byte of each gradient crosses the links, and four for each block; ``state`` as ``Quantized`` takes it."""
    return average(ctx, gradients=gradients, hook=quantized_hook, state=lambda: Quantized(quantizer, **state))


def to_float16(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PyTorch's ``fp16_compress_hook``."""
    return fp16_compress_hook(state, bucket)


def to_low_rank(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PyTorch's ``powerSGD_hook`` (Vogels et al., arXiv 1905.13727)."""
    return powerSGD_hook(state, bucket)


def low_rank(rank: int, *, feedback: bool = True, least_rate: float = 0.0) -> PowerSGDState:
    """A state that compresses as soon as PyTorch allows it: tiny matrices too, or what shrinks by ``least_rate``."""
    return PowerSGDState(
        None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=START,
        min_compression_rate=least_rate,
        random_seed=1,
        use_error_feedback=feedback,
    )


# What a user would register, by name: the hook and what makes its state.
HOOKS: Mapping[str, tuple[Hook, Callable[[], Any]]] = {
    "float32": (allreduce_hook, lambda: None),
    "bfloat16": (to_bfloat16, lambda: None),
    "float16": (to_float16, lambda: None),
    "int8": (quantized_hook, lambda: Quantized(INT8)),
    "float8": (quantized_hook, lambda: Quantized(FLOAT8)),
    "int8 with feedback": (quantized_hook, lambda: Quantized(INT8, feedback=True)),
    "float8 with feedback": (quantized_hook, lambda: Quantized(FLOAT8, feedback=True)),
    "PowerSGD": (to_low_rank, lambda: low_rank(1)),
}


def bytes_sent(
    ctx: Context,
    *,
    hook: Hook | None,
    state: Callable[[], Any] | None = None,
    shape: tuple[int, int],
    steps: int = START + 1,
    matrices: int = 1,
) -> dict[str, int]:
    """By the rank in the last of some steps that average matrices with this hook, each in a bucket: by collective."""
    generator = ctx.generator()
    drawn = [torch.randn(shape, device=ctx.device, generator=generator) for _ in range(matrices)]
    each = drawn[0].nbytes / MiB
    step = average(ctx, gradients=lambda _: drawn, hook=hook, state=state, bucket_cap_mb=each)
    for _ in range(steps - 1):
        step()
    with traffic_of_callbacks_too() as calls:
        step()
    return ring_bytes(calls, ctx.world_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Least squares: each rank's loss is |X W - Y|**2 / (2 N) over its own N rows; the ranks' mean is minimised."""

    x: list[torch.Tensor]
    """N x D for each rank, float32."""
    y: list[torch.Tensor]
    """N x K for each rank."""
    lr: float
    steps: int


@dataclass(frozen=True, slots=True)
class Descent:
    """How a rank's gradient descent went."""

    weights: torch.Tensor
    """Before each step and after the last, (steps + 1) x D x K."""
    errors: torch.Tensor
    """What the hook kept back of the rank's share of the mean after each step, steps x D x K."""


def descend(ctx: Context, *, problem: Regression, hook: Hook, state: Callable[[], Any]) -> Descent:
    """Gradient descent from zero with gradients that the hook averages."""
    x, y = problem.x[ctx.rank].to(ctx.device), problem.y[ctx.rank].to(ctx.device)
    model = nn.Linear(x.shape[1], y.shape[1], bias=False, device=ctx.device)
    nn.init.zeros_(model.weight)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, init_sync=False)
    kept = state()
    ddp.register_comm_hook(kept, hook)
    weights, errors = [model.weight.detach().clone()], []
    for _ in range(problem.steps):
        ddp.zero_grad(set_to_none=True)
        (ddp(x) - y).square().sum().div(2 * len(x)).backward()
        assert model.weight.grad is not None
        with torch.no_grad():
            model.weight -= problem.lr * model.weight.grad
        weights.append(model.weight.detach().clone())
        errors.append(_kept_back(ctx, kept, model.weight))
    return Descent(torch.stack(weights), torch.stack(errors))


def _kept_back(ctx: Context, state: Any, weight: torch.Tensor) -> torch.Tensor:
    """The rank's share: the mean over the ranks of these is what the mean gradient lacks."""
    if isinstance(state, PowerSGDState) and state.error_dict:
        return state.error_dict[0].view_as(weight).clone()
    if isinstance(state, Quantized) and state.errors:
        own, shard = state.errors[0]
        # An element of the shard is an error of the mean itself, which nobody else holds.
        whole = own.clone().view(ctx.world_size, -1)
        whole[ctx.rank] += ctx.world_size * shard.view(-1)
        return whole.view(-1)[: weight.numel()].view_as(weight)
    return torch.zeros_like(weight)


def averaging_error(world_size: int, unit_roundoff: float) -> float:
    """How far a mean over R ranks, taken in a dtype of this ``unit_roundoff`` u, may be off, by mean(|g|).

    Rank r casts its g_r to the dtype and divides it by R; the R shares are added in some order. A share is
    rounded once by the cast, once by the division (exact where R is a power of two), and at most R - 1
    times as a part of a sum. Each rounding multiplies it by 1 + d with |d| <= u, so that with k roundings

        |computed - exact| <= ((1 + u)**k - 1) * (|g_0| + ... + |g_R-1|) / R.

    In float32 nothing is cast, but DistributedDataParallel multiplies by 1 / R, itself rounded: k is the same.
    The bound holds for rings and trees alike, as long as nothing underflows, since u is that of normal
    numbers. It is not one of relative error: where ranks cancel out, the mean may be smaller than its error.
    """
    division = 0 if world_size & (world_size - 1) == 0 else 1
    return float((1 + unit_roundoff) ** (1 + division + world_size - 1) - 1)


def averaging_underflow(world_size: int, dtype: torch.dtype) -> float:
    """What the errors of numbers too small to be normal may add to ``averaging_error``.

    The casts and the divisions round such a number by at most h, half of the smallest subnormal number: h / R for
    each of R casts once it is divided, h for each of R divisions. Sums of subnormal numbers are exact, and
    rounding those of others magnifies what came before by less than 2.
    """
    return float(2 * (world_size + 1) * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2)
