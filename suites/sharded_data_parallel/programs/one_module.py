"""What is set for a module alone, or for the modules within it too, if ``fully_shard`` was applied to both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context

SETTERS: Mapping[str, Callable[[FSDPModule, bool], None]] = {
    "set_reshard_after_forward": lambda outer, recurse: outer.set_reshard_after_forward(False, recurse=recurse),
    "set_reshard_after_backward": lambda outer, recurse: outer.set_reshard_after_backward(False, recurse=recurse),
    "set_requires_gradient_sync": lambda outer, recurse: outer.set_requires_gradient_sync(False, recurse=recurse),
    "set_requires_all_reduce": lambda outer, recurse: outer.set_requires_all_reduce(False, recurse=recurse),
    "set_reduce_scatter_unused_params": lambda outer, recurse: outer.set_reduce_scatter_unused_params(
        True, recurse=recurse
    ),
}
"""Each calls a method of the outer module, with the value that it does not have at first."""


def switched(ctx: Context, *, method: str, recurse: bool) -> dict[str, list[bool]]:
    """Which parameters of the outer and the inner module are still gathered, and which of them have gradients.

    Args:
        ctx: the rank's context.
        method: a key of ``SETTERS``.
        recurse: whether it is called for the inner module too.

    Returns:
        For the outer and the inner module, in this order: gathered after forward, gathered after backward, with a
        gradient, and with one of a parameter that no rank uses.
    """
    replicated = ctx.mesh((ctx.world_size, 1), ("replicate", "shard"))
    mesh = replicated if method == "set_requires_all_reduce" else ctx.mesh((ctx.world_size,))
    features = 2 * ctx.world_size
    inner, last = (nn.Linear(features, features, device=ctx.device) for _ in range(2))
    for layer in (inner, last):
        layer.register_parameter("spare", nn.Parameter(torch.ones(features, device=ctx.device)))
    outer = nn.Sequential(inner, last)
    for module in (inner, outer):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    SETTERS[method](cast("FSDPModule", outer), recurse)
    found = {}

    def gathered() -> list[bool]:
        return [not isinstance(layer.weight, DTensor) for layer in (last, inner)]

    output: torch.Tensor = outer(torch.ones(1, features, device=ctx.device))
    found["gathered after forward"] = gathered()
    output.sum().backward()
    found["gathered after backward"] = gathered()
    for module in (inner, outer):
        cast("FSDPModule", module).reshard()  # a shard has the gradient
    found["with a gradient"] = [layer.weight.grad is not None for layer in (last, inner)]
    found["with a gradient of what is unused"] = [
        layer.get_parameter("spare").grad is not None for layer in (last, inner)
    ]
    return found
