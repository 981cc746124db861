"""Steps of a split layer, each with an input, an output gradient and parameters of its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from pytest_gpuperf import Context
from suites.shared.inputs import Given, overwrite
from suites.shared.sharding import local_gradient, local_tensor, shard
from suites.shared.step import Step, Tensors


def mine(ctx: Context, tensor: torch.Tensor, *, sharded: bool, dim: int = -1) -> torch.Tensor:
    """The whole tensor, or this rank's shard of a dimension."""
    tensor = tensor.to(ctx.device)
    return shard(tensor, ctx.world_size, dim)[ctx.rank] if sharded else tensor


def layer_steps(
    ctx: Context,
    module: nn.Module,
    given: Sequence[Given],
    *,
    x_sharded: bool = False,
    grad_sharded: bool = False,
    dim: int = -1,
) -> Step[Tensors]:
    """A step of forward and backward; it returns the output and every gradient, of DTensors this rank's shard.

    Args:
        ctx: the rank's context.
        module: the split layer.
        given: to each step in turn; the module has the first one's parameters.
        x_sharded: whether the rank gets its shard of the input.
        grad_sharded: whether the output is the rank's shard, and so its gradient.
        dim: the dimension that both are sharded by: the last one, or the first one of a sequence of tokens.
    """
    steps = enumerate(itertools.cycle(given))

    def step() -> Tensors:
        number, now = next(steps)
        if number:  # the first step has those that the layer was split with
            overwrite(module, now.parameters)
        module.zero_grad()
        x = mine(ctx, now.x, sharded=x_sharded, dim=dim).detach().clone().requires_grad_()
        output = module(x)
        output.backward(mine(ctx, now.grad, sharded=grad_sharded, dim=dim))
        leaves = {"input": x, **dict(module.named_parameters())}
        return {"output": local_tensor(output)} | {
            f"{name} gradient": local_gradient(leaf, name) for name, leaf in leaves.items()
        }

    return step
