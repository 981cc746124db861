"""DistributedDataParallel averaging float32 gradients over R ranks, with and without a hook that compresses them.

Both arms are the same DistributedDataParallel: what is compared is what a user changes, one call of
``register_comm_hook``. Its model has no arithmetic. Backward hands over gradients that are there already,
so a step is DistributedDataParallel's own work: the copy of the gradients into buckets, the casts, the
all_reduces.
"""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context

Step = Callable[[], list[torch.Tensor]]
Gradients = Callable[[Context], list[torch.Tensor]]
Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]

# Unit roundoffs: the largest relative error of rounding to nearest.
BFLOAT16_ROUNDOFF = torch.finfo(torch.bfloat16).eps / 2  # 2**-8, of a significand of 8 bits
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


def average(ctx: Context, *, gradients: Gradients, hook: Hook | None) -> Step:
    """The mean over the ranks of the gradients that ``gradients(ctx)`` gives each of them."""
    model = DistributedDataParallel(GivenGradients(gradients(ctx)), gradient_as_bucket_view=True)
    if hook is not None:
        model.register_comm_hook(None, hook)
    parameters = list(model.parameters())

    def step() -> list[torch.Tensor]:
        model.zero_grad(set_to_none=True)
        model().backward()
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    return step


def average_in_float32(ctx: Context, *, gradients: Gradients) -> Step:
    """Four bytes of each gradient cross the links."""
    return average(ctx, gradients=gradients, hook=None)


def average_in_bfloat16(ctx: Context, *, gradients: Gradients) -> Step:
    """Two bytes of each gradient cross the links; both casts are part of the step."""
    return average(ctx, gradients=gradients, hook=to_bfloat16)


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
