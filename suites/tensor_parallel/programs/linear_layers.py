"""Linear layers split by columns or by rows, and an MLP of both."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from pytest_gpuperf import Context
from suites.shared.inputs import Given
from suites.shared.sharding import parallelized, parameters_on_device
from suites.shared.step import Step, Tensors
from suites.tensor_parallel.programs.steps import layer_steps


def linear(parameters: Tensors) -> nn.Linear:
    """The layer with these parameters: ``weight`` and, where there is one, ``bias``."""
    weight = parameters["weight"]
    module = nn.Linear(weight.shape[1], weight.shape[0], "bias" in parameters, weight.device, weight.dtype)
    module.load_state_dict(parameters)
    return module


class Mlp(nn.Sequential):
    """Layers one after the other, with a forward of its own: torch compiles that of nn.Sequential layer by layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            x = layer(x)
        return x


def two_layers(parameters: Tensors) -> Mlp:
    """Linear, ReLU, linear; the parameters' names begin with the layer's place, ``0.`` or ``2.``.

    ReLU, since it keeps whole numbers whole: the results are exact.
    """
    first, second = (
        linear({name[2:]: value for name, value in parameters.items() if name.startswith(place)})
        for place in ("0.", "2.")
    )
    return Mlp(first, nn.ReLU(), second)


def column_parallel_linear(ctx: Context, *, given: Sequence[Given], gather_output: bool) -> Step[Tensors]:
    """Each rank computes some of the output features; the step returns them, or all if ``gather_output``."""
    style = ColwiseParallel(output_layouts=Replicate()) if gather_output else ColwiseParallel()
    layer = parallelized(ctx, linear(parameters_on_device(ctx, given[0].parameters)), style)
    return layer_steps(ctx, layer, given, grad_sharded=not gather_output)


def row_parallel_linear(ctx: Context, *, given: Sequence[Given], input_is_sharded: bool) -> Step[Tensors]:
    """Each rank multiplies some of the input features; the products are summed over the ranks.

    Each rank is given only its features if ``input_is_sharded``, and takes them from all of them otherwise.
    """
    style = RowwiseParallel() if input_is_sharded else RowwiseParallel(input_layouts=Replicate())
    layer = parallelized(ctx, linear(parameters_on_device(ctx, given[0].parameters)), style)
    return layer_steps(ctx, layer, given, x_sharded=input_is_sharded)


def split_mlp(ctx: Context, parameters: Tensors, *, local_hidden: bool = True) -> Mlp:
    """The MLP, its first layer split by columns and its second one by rows."""
    plan: dict[str, ParallelStyle] = {"0": ColwiseParallel(use_local_output=local_hidden), "2": RowwiseParallel()}
    return parallelized(ctx, two_layers(parameters_on_device(ctx, parameters)), plan)


def mlp(ctx: Context, *, given: Sequence[Given], local_hidden: bool = True, compiled: bool = False) -> Step[Tensors]:
    """A column-parallel layer, ReLU, and a row-parallel layer.

    The hidden features pass between them as each rank's plain tensor if ``local_hidden``, as a DTensor
    otherwise. Only the DTensor knows the features of all ranks where R does not divide them: from a plain
    one the row-parallel layer concludes R times its size, and raises.
    """
    module = split_mlp(ctx, given[0].parameters, local_hidden=local_hidden)
    if compiled:
        module.compile(backend="aot_eager")  # in place, so that parameters keep their names
    return layer_steps(ctx, module, given)


def mlp_collectives(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Tensors
) -> tuple[dict[str, int], dict[str, int]]:
    """How often the MLP's forward and its backward issue each collective."""
    module = split_mlp(ctx, parameters)
    x = x.to(ctx.device).requires_grad_()
    with CommDebugMode() as forward:
        output = module(x)
    with CommDebugMode() as backward:
        output.backward(grad.to(ctx.device))
    return _counts(forward), _counts(backward)


def _counts(mode: CommDebugMode) -> dict[str, int]:
    return {str(op).rpartition(".")[2]: count for op, count in mode.get_comm_counts().items()}
