"""Linear layers split by columns or by rows, and an MLP of both."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from pytest_gpuperf import Context
from suites.shared.sharding import parallelized, parameters_on_device, shard
from suites.shared.step import Step, Tensors
from suites.shared.training import training_step


def linear(parameters: Tensors) -> nn.Linear:
    """The layer with these parameters: ``weight`` and, where there is one, ``bias``."""
    weight = parameters["weight"]
    module = nn.Linear(weight.shape[1], weight.shape[0], "bias" in parameters, weight.device, weight.dtype)
    module.load_state_dict(parameters)
    return module


def two_layers(parameters: Tensors) -> nn.Sequential:
    """Linear, ReLU, linear; the parameters' names begin with the layer's place, ``0.`` or ``2.``.

    ReLU, since it keeps whole numbers whole: the results are exact.
    """
    first, second = (
        linear({name[2:]: value for name, value in parameters.items() if name.startswith(place)})
        for place in ("0.", "2.")
    )
    return nn.Sequential(first, nn.ReLU(), second)


def _mine(ctx: Context, tensor: torch.Tensor, *, sharded: bool) -> torch.Tensor:
    """The whole tensor, or this rank's shard of its last dimension."""
    tensor = tensor.to(ctx.device)
    return shard(tensor, ctx.world_size, -1)[ctx.rank] if sharded else tensor


def column_parallel_linear(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Tensors, gather_output: bool
) -> Step[Tensors]:
    """Each rank computes some of the output features; the step returns them, or all if ``gather_output``."""
    style = ColwiseParallel(output_layouts=Replicate()) if gather_output else ColwiseParallel()
    layer = parallelized(ctx, linear(parameters_on_device(ctx, parameters)), style)
    return training_step(layer, x.to(ctx.device), _mine(ctx, grad, sharded=not gather_output))


def column_parallel_linear_without_input_gradient_reduction(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Tensors
) -> Step[Tensors]:
    """Wrong on purpose: each rank's input gradient knows only of the rank's own output features."""
    mine = {name: shard(value, ctx.world_size, 0)[ctx.rank] for name, value in parameters.items()}
    return training_step(linear(parameters_on_device(ctx, mine)), x.to(ctx.device), _mine(ctx, grad, sharded=True))


def row_parallel_linear(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Tensors, input_is_sharded: bool
) -> Step[Tensors]:
    """Each rank multiplies some of the input features; the products are summed over the ranks.

    Each rank is given only its features if ``input_is_sharded``, and takes them from all of them otherwise.
    """
    style = RowwiseParallel() if input_is_sharded else RowwiseParallel(input_layouts=Replicate())
    layer = parallelized(ctx, linear(parameters_on_device(ctx, parameters)), style)
    return training_step(layer, _mine(ctx, x, sharded=input_is_sharded), grad.to(ctx.device))


def row_parallel_linear_without_all_reduce(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Tensors
) -> Step[Tensors]:
    """Wrong on purpose: each rank keeps its own summand of the output."""
    style = RowwiseParallel(output_layouts=Partial())
    layer = parallelized(ctx, linear(parameters_on_device(ctx, parameters)), style)
    return training_step(layer, _mine(ctx, x, sharded=True), grad.to(ctx.device))


def row_parallel_linear_with_bias_on_every_rank(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Tensors
) -> Step[Tensors]:
    """Wrong on purpose: the sum over the ranks holds the bias R times."""
    repeated = {**parameters, "bias": parameters["bias"] * ctx.world_size}
    return row_parallel_linear(ctx, x=x, grad=grad, parameters=repeated, input_is_sharded=True)


def _split_mlp(
    ctx: Context, parameters: Tensors, *, gather_hidden: bool = False, local_hidden: bool = True
) -> nn.Module:
    column = ColwiseParallel(use_local_output=local_hidden)
    row = RowwiseParallel()
    if gather_hidden:
        column, row = ColwiseParallel(output_layouts=Replicate()), RowwiseParallel(input_layouts=Replicate())
    return parallelized(ctx, two_layers(parameters_on_device(ctx, parameters)), {"0": column, "2": row})


def mlp(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Tensors, local_hidden: bool = True
) -> Step[Tensors]:
    """A column-parallel layer, ReLU, and a row-parallel layer.

    The hidden features pass between them as each rank's plain tensor if ``local_hidden``, as a DTensor
    otherwise. Only the DTensor knows the features of all ranks where R does not divide them: from a plain
    one the row-parallel layer concludes R times its size, and raises.
    """
    module = _split_mlp(ctx, parameters, local_hidden=local_hidden)
    return training_step(module, x.to(ctx.device), grad.to(ctx.device))


def mlp_collectives(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Tensors, gather_hidden: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """How often the MLP's forward and its backward issue each collective.

    With ``gather_hidden`` the layers exchange all hidden features, as column- and row-parallel layers do
    that know nothing of each other.
    """
    module = _split_mlp(ctx, parameters, gather_hidden=gather_hidden)
    x = x.to(ctx.device).requires_grad_()
    with CommDebugMode() as forward:
        output = module(x)
    with CommDebugMode() as backward:
        output.backward(grad.to(ctx.device))
    return _counts(forward), _counts(backward)


def _counts(mode: CommDebugMode) -> dict[str, int]:
    return {str(op).rpartition(".")[2]: count for op, count in mode.get_comm_counts().items()}
