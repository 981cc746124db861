"""What averaging finds hard: weights that several layers share, and numbers at the ends of float16's range."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of

WIDTH = 3


class Shared(nn.Module):
    """The first and the last layer have one weight, and the layer between them runs twice."""

    def __init__(self, weights: Tensors, *, recompute: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        self.middle = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        self.last.weight = self.first.weight
        self.load_state_dict({**weights, "last.weight": weights["first.weight"]})
        self._recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Four layers, of which two are one."""
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self._hidden, x, use_reentrant=False) if self._recompute else self._hidden(x)
        output: torch.Tensor = self.last(x)
        return output

    def _hidden(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.middle(x)
        return made.relu_()  # in place: what is computed again writes into its own output


def _replicated(ctx: Context, module: nn.Module) -> nn.Module:
    """DistributedDataParallel."""
    return DistributedDataParallel(module)


def _sharded(ctx: Context, module: nn.Module) -> nn.Module:
    """FSDP2, as one unit."""
    fully_shard(module, mesh=ctx.mesh((ctx.world_size,)))
    return module


def _sharded_by_layer(ctx: Context, module: nn.Module) -> nn.Module:
    """FSDP2, the layer that runs twice by itself."""
    mesh = ctx.mesh((ctx.world_size,))
    if isinstance(module, Shared):
        fully_shard(module.middle, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def _sharded_in_replicas(ctx: Context, module: nn.Module) -> nn.Module:
    """FSDP2 in two replicas."""
    fully_shard(module, mesh=ctx.mesh((2, ctx.world_size // 2), ("replicate", "shard")))
    return module


WAYS: Mapping[str, Any] = {
    "replicated": _replicated,
    "sharded": _sharded,
    "sharded by layer": _sharded_by_layer,
    "in replicas": _sharded_in_replicas,
}


@contextlib.contextmanager
def _waiting(module: nn.Module, waits: bool) -> Iterator[None]:
    """Within it gradients stay on the rank."""
    if not waits:
        yield
    elif isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield
    else:
        cast("FSDPModule", module).set_requires_gradient_sync(False)
        yield
        cast("FSDPModule", module).set_requires_gradient_sync(True)


def shared_weights(
    ctx: Context, *, way: str, weights: Tensors, steps: Sequence[Sequence[torch.Tensor]], recompute: bool
) -> Tensors:
    """Gradients and weights after each step, whole, by step and name; a weight moves by its gradient's sign.

    Args:
        ctx: the rank's context.
        way: a key of ``WAYS``.
        weights: the initial ones.
        steps: microbatches of each step, for all ranks; a rank takes its share of the rows.
        recompute: whether the layer that runs twice is computed again in backward.
    """
    module = WAYS[way](ctx, Shared(weights, recompute=recompute).to(ctx.device))
    told: Tensors = {}
    for number, microbatches in enumerate(steps, start=1):
        module.zero_grad()
        for index, rows in enumerate(microbatches):
            mine = rows.tensor_split(ctx.world_size)[ctx.rank].to(ctx.device)
            with _waiting(module, index + 1 < len(microbatches)):
                module(mine).sum().backward()
        for name, value in module.named_parameters():
            gradient = gradient_of(value, name)
            with torch.no_grad():
                value.sub_(gradient.sign())
            short = name.removeprefix("module.")
            told[f"step {number}, {short} gradient"], told[f"step {number}, {short}"] = _whole(gradient), _whole(value)
    return told


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone().cpu()


class Weighted(nn.Module):
    """A sum with given weights: the weights are the gradient."""

    def __init__(self, numel: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(numel, dtype=dtype))

    def forward(self, weights: torch.Tensor) -> torch.Tensor:
        """The sum."""
        return self.value @ weights


def mean_of_sums(
    ctx: Context, *, gradients: Sequence[Sequence[torch.Tensor]], policy: MixedPrecisionPolicy
) -> torch.Tensor:
    """FSDP2's mean over ranks of the sums over microbatches, whole; ranks meet after the last microbatch.

    Args:
        ctx: the rank's context.
        gradients: of each rank and microbatch, all in one dtype, which the parameter has too.
        policy: of the module.
    """
    mine = [gradient.to(ctx.device) for gradient in gradients[ctx.rank]]
    module = Weighted(len(mine[0]), mine[0].dtype).to(ctx.device)
    fully_shard(module, mesh=ctx.mesh((ctx.world_size,)), mp_policy=policy)
    for index, gradient in enumerate(mine, start=1):
        with _waiting(module, index < len(mine)):
            module(gradient).backward()
    return _whole(gradient_of(module.value))


def mean_gradient(ctx: Context, *, way: str, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean of the ranks' gradients, whole, in their dtype."""
    mine = gradients[ctx.rank].to(ctx.device)
    module = WAYS[way](ctx, Weighted(len(mine), mine.dtype).to(ctx.device))
    module(mine).backward()
    return _whole(gradient_of(next(module.parameters())))
