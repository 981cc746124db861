"""DistributedDataParallel of parameters that are unlike in dtype, layout and kind, evaluated and copied in between."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.inputs import integers
from suites.shared.step import Tensors, gradient_of

TOKENS = 6
DTYPES: dict[str, torch.dtype] = {
    "scale": torch.float64,
    "halved": torch.float16,
    "brain": torch.bfloat16,
    "single": torch.float32,
    "complex": torch.complex128,
}
"""The dtypes of the parameters whose gradients are given; ``scale`` has no dimension."""


class Unlike(nn.Module):
    """A convolution whose weight lies channels last, a sparse embedding, one frozen parameter, and many dtypes."""

    def __init__(self, rank: int, *, sparse: bool = True) -> None:
        super().__init__()
        self.image = nn.Conv2d(2, 3, (2, 3), bias=False, dtype=torch.float64).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.table = nn.Embedding(TOKENS, 2, sparse=sparse, dtype=torch.float64)
        self.frozen = nn.Parameter(torch.tensor([2.0, 1.0 + rank], dtype=torch.float64), requires_grad=False)
        for name, dtype in DTYPES.items():
            shape = () if name == "scale" else (3,)
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=dtype)))
        with torch.no_grad():
            for number, value in enumerate(value for value in self.parameters() if value.requires_grad):
                value.copy_(drawn(value, 64 * rank + number))
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(1, dtype=torch.float64))

    def forward(self, given: Tensors) -> torch.Tensor:
        """The loss, whose gradients are products of what is given and of the frozen parameter."""
        if self.training:
            self.calls += 1
        looked_up = self.table(given["tokens"])
        losses = [(self.image(given["x"]) * given["grad"]).sum(), (looked_up * given["rows"] * self.frozen).sum()]
        for name in DTYPES:
            losses.append((getattr(self, name) * given[name]).sum().abs().double())
        return torch.stack(losses).sum()


def drawn(like: torch.Tensor, seed: int, largest: int = 3) -> torch.Tensor:
    """Small whole numbers of the tensor's shape and dtype."""
    shape = tuple(like.shape)
    real = integers(shape, torch.float64, seed=seed, low=1, high=largest)
    return real.to(like.dtype)


def given_to(rank: int, step: int, degree: int) -> Tensors:
    """What a rank's step is given; of the embedding's rows each rank looks up others, and another number of them."""
    seed = 1024 * step + 64 * rank
    module = Unlike(0)
    named = dict(module.named_parameters())
    given = {name: degree * drawn(named[name], seed + number) for number, name in enumerate(DTYPES)}
    tokens = integers((2 + rank,), torch.int64, seed=seed + 16, low=0, high=TOKENS - 1)
    return given | {
        "tokens": tokens,
        "rows": degree * integers((len(tokens), 2), torch.float64, seed=seed + 17),
        "x": integers((2, 2, 4, 4), torch.float64, seed=seed + 18),
        "grad": degree * integers((2, 3, 3, 2), torch.float64, seed=seed + 19),
    }


def told_of(module: Unlike, loss: torch.Tensor) -> Tensors:
    """Copies of the loss, of gradients, of parameters and of the buffer."""
    named = {
        f"{name} gradient": gradient_of(value, name) for name, value in module.named_parameters() if value.requires_grad
    }
    told = {"loss": loss, **named, **dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: value.detach().to_dense().clone() for name, value in told.items()}


def trained(ctx: Context, *, steps: int, buckets: Sequence[float], views: bool) -> tuple[list[Tensors], list[Any]]:
    """What each step leaves on the rank, and strides of each gradient after the last one.

    Between the steps each rank evaluates its module, in which nothing counts, and after the first one a copy goes on.

    Args:
        ctx: the rank's context.
        steps: how many.
        buckets: capacities in MiB of the first buckets, or of all.
        views: whether gradients are views of buckets.
    """
    options: dict[str, Any] = {"gradient_as_bucket_view": views}
    options |= {"bucket_cap_mb": buckets[0]} if len(buckets) == 1 else {"bucket_cap_mb_list": list(buckets)}
    module = Unlike(ctx.rank, sparse=ctx.device.type == "cpu").to(ctx.device)  # NCCL sums no sparse gradients
    wrapped = DistributedDataParallel(module, **options)
    told = []
    for step in range(steps):
        optimizer = torch.optim.SGD([value for value in wrapped.parameters() if value.requires_grad], lr=1.0)
        optimizer.zero_grad()
        given = {name: value.to(ctx.device) for name, value in given_to(ctx.rank, step, ctx.world_size).items()}
        with torch.backends.cudnn.flags(enabled=False):  # which may round
            loss = wrapped(given)
            loss.backward()
        optimizer.step()
        module = cast("Unlike", wrapped.module)
        told.append(told_of(module, loss))
        wrapped.eval()
        with torch.no_grad():
            wrapped(given)
        wrapped.train()
        if step == 0:
            wrapped = copy.deepcopy(wrapped)
    gradients = {name: value.grad for name, value in module.named_parameters() if value.grad is not None}
    return told, [(name, value.stride()) for name, value in gradients.items() if name != "table.weight"]
