"""Inputs and outputs that styles lay out anew, and DTensors on their way between layouts and dtypes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    SequenceParallel,
    parallelize_module,
)

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of


class Sum(nn.Module):
    """Adds what it gets by place to twice of what it gets by name, and notes down whether these are DTensors."""

    laid_out: tuple[bool, bool]

    def forward(self, x: torch.Tensor, *, other: torch.Tensor) -> torch.Tensor:
        """The sum, of local tensors or of DTensors."""
        self.laid_out = isinstance(x, DTensor), isinstance(other, DTensor)
        return x + 2 * other


def styles() -> dict[str, ParallelStyle | list[ParallelStyle]]:
    """Ways to give a module two sharded tensors as whole ones, and to shard what it returns."""
    return {
        "inputs, then outputs": [
            PrepareModuleInput(
                input_layouts=Shard(0),
                desired_input_layouts=Replicate(),
                input_kwarg_layouts={"other": Shard(1)},
                desired_input_kwarg_layouts={"other": Replicate()},
                use_local_output=False,
            ),
            PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0), use_local_output=True),
        ],
        "local inputs, then DTensors": [
            PrepareModuleInput(
                input_layouts=Shard(0),
                desired_input_layouts=Replicate(),
                input_kwarg_layouts={"other": Shard(1)},
                desired_input_kwarg_layouts={"other": Replicate()},
                use_local_output=True,
            ),
            PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0), use_local_output=False),
        ],
        "both at once": PrepareModuleInputOutput(
            input_layouts=Shard(0),
            desired_input_layouts=Replicate(),
            input_kwarg_layouts={"other": Shard(1)},
            desired_input_kwarg_layouts={"other": Replicate()},
            use_local_input=True,
            output_layouts=Replicate(),
            desired_output_layouts=Shard(0),
            use_local_output=False,
        ),
    }


def sharded_sum(ctx: Context, *, style: str, x: torch.Tensor, other: torch.Tensor, grad: torch.Tensor) -> Tensors:
    """The rank's rows of the sum, the gradients of its inputs, and which tensors around the sum are DTensors.

    Args:
        ctx: the rank's context.
        style: a key of ``styles``.
        x: the whole first input; it is given by rows.
        other: the whole second input; it is given by columns.
        grad: the gradient of the whole output.
    """
    mesh = ctx.mesh((ctx.world_size,))
    module = Sum()
    chosen = styles()[style]
    for each in chosen if isinstance(chosen, list) else [chosen]:
        parallelize_module(module, mesh, each)
    rows, columns = (_mine(ctx, tensor, dim).requires_grad_() for tensor, dim in ((x, 0), (other, 1)))
    returned: torch.Tensor = module(rows, other=columns)
    output = returned.to_local() if isinstance(returned, DTensor) else returned
    output.backward(_mine(ctx, grad, 0))
    return {
        "DTensors": torch.tensor([*module.laid_out, isinstance(returned, DTensor)]),
        "output": output.detach(),
        "gradient of x": gradient_of(rows),
        "gradient of other": gradient_of(columns),
    }


def _mine(ctx: Context, whole: torch.Tensor, dim: int) -> torch.Tensor:
    return whole.chunk(ctx.world_size, dim)[ctx.rank].to(ctx.device).clone()


def along_sequence(ctx: Context, *, x: torch.Tensor, weight: torch.Tensor, dim: int) -> Tensors:
    """The rank's part of RMSNorm of a sequence along dimension ``dim``, and the weight's gradient of all parts."""
    norm = nn.RMSNorm(x.shape[-1], eps=0.0, dtype=x.dtype, device=ctx.device)
    with torch.no_grad():
        norm.weight.copy_(weight)
    parallelize_module(norm, ctx.mesh((ctx.world_size,)), SequenceParallel(sequence_dim=dim, use_local_output=True))
    output: torch.Tensor = norm(_mine(ctx, x, dim))
    output.sum().backward()
    gradient = gradient_of(norm.weight)
    assert isinstance(gradient, DTensor)
    return {"output": output.detach(), "weight gradient": gradient.full_tensor()}


def redistributed(ctx: Context, *, x: torch.Tensor, grad: torch.Tensor) -> Tensors:
    """A tensor by rows that goes to columns asynchronously, computes in float32, and comes together.

    Args:
        ctx: the rank's context.
        x: the whole tensor, in float64, of rows that ranks need not divide.
        grad: the gradient of the whole output, in float32.
    """
    mesh = ctx.mesh((ctx.world_size,))
    whole = distribute_tensor(x.to(ctx.device), mesh, [Shard(0)], src_data_rank=None)
    local = whole.to_local().detach().requires_grad_()
    rows = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=x.shape, stride=x.stride())
    columns = rows.redistribute(
        device_mesh=mesh,
        placements=[Shard(1)],
        async_op=True,
        forward_dtype=torch.float32,
        backward_dtype=torch.float64,
    )
    doubled = 2 * columns
    assert isinstance(doubled, DTensor)
    gathered = doubled.full_tensor(grad_placements=[Replicate()])
    gathered.backward(grad.to(ctx.device))
    return {"output": gathered.detach(), "gradient": gradient_of(local)}


def partial_gradients(ctx: Context, *, x: torch.Tensor, grads: list[torch.Tensor], gathered: bool) -> Tensors:
    """A tensor that all ranks hold, and whose gradient is a sum over what they compute each with it.

    Args:
        ctx: the rank's context.
        x: the tensor.
        grads: what each rank adds to the gradient.
        gathered: whether ranks take the whole tensor of a DTensor, not the local one.
    """
    mesh = ctx.mesh((ctx.world_size,))
    local = x.to(ctx.device).clone().requires_grad_()
    if "grad_placements" in inspect.signature(DTensor.from_local).parameters:
        held = DTensor.from_local(local, mesh, [Replicate()], run_check=False, grad_placements=[Replicate()])
    else:  # older versions of torch take the layout of the tensor
        held = DTensor.from_local(local, mesh, [Replicate()], run_check=False)
    used = held.full_tensor(grad_placements=[Partial()]) if gathered else held.to_local(grad_placements=[Partial()])
    used.backward(grads[ctx.rank].to(ctx.device))
    return {"gradient": gradient_of(local)}


def gradients_of_parts(ctx: Context, *, parts: list[torch.Tensor], grad: torch.Tensor) -> Tensors:
    """The gradients of a rank's part of a sum, if the ranks take the local part, or the sum by rows, of the DTensor.

    Args:
        ctx: the rank's context.
        parts: of each rank.
        grad: the gradient of what the rank takes of the local part, which is the same on all ranks, and of the sum.
    """
    mesh = ctx.mesh((ctx.world_size,))
    own, other = (parts[ctx.rank].to(ctx.device).clone().requires_grad_() for _ in range(2))
    doubled = 2 * DTensor.from_local(own, mesh, [Partial()], run_check=False)
    assert isinstance(doubled, DTensor)
    taken = doubled.to_local()
    taken.backward(grad.to(ctx.device))
    rows = DTensor.from_local(other, mesh, [Partial()], run_check=False).redistribute(placements=[Shard(0)])
    rows.to_local().backward(_mine(ctx, grad, 0))
    return {"local": taken.detach(), "of the local part": gradient_of(own), "of the sum": gradient_of(other)}


def reduced_gradients(ctx: Context, *, x: torch.Tensor, grads: list[torch.Tensor]) -> Tensors:
    """A tensor by rows that is gathered in float32, and whose gradient is a sum that float32 would round.

    Args:
        ctx: the rank's context.
        x: the whole tensor, in float64.
        grads: each rank's part of the gradient of the whole tensor, in float32.
    """
    mesh = ctx.mesh((ctx.world_size,))
    rows = distribute_tensor(x.to(ctx.device), mesh, [Shard(0)], src_data_rank=None)
    rows.requires_grad_()
    whole = rows.redistribute(mesh, [Replicate()], forward_dtype=torch.float32)
    used = whole.to_local(grad_placements=[Partial()])
    used.backward(grads[ctx.rank].to(ctx.device))
    gradient = gradient_of(rows)
    assert isinstance(gradient, DTensor)
    return {"output": used.detach(), "gradient": gradient.to_local()}


def replicas_checked(ctx: Context, *, values: list[torch.Tensor]) -> Tensors:
    """What rank r gives as a replica, which is another one on each rank: torch sends the first rank's to all.

    It does so along the second axis of a mesh too, whose first one has one rank.
    """
    flat, deep = ctx.mesh((ctx.world_size,)), ctx.mesh((1, ctx.world_size))
    first, second = (values[ctx.rank].to(ctx.device).clone() for _ in range(2))
    of_one = DTensor.from_local(first, flat, [Replicate()], run_check=True)
    of_two = DTensor.from_local(second, deep, [Shard(0), Replicate()], run_check=True)
    return {"replica": of_one.to_local(), "replica along the second axis": of_two.to_local()}


def matched(ctx: Context, *, plan: str, layers: int) -> list[list[int]]:
    """The rows that the rank has of each layer's weight, if a pattern names the layers that are split by rows."""
    stack = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(2, 2 * ctx.world_size)}) for _ in range(layers))
    parallelize_module(stack, ctx.mesh((ctx.world_size,)), {plan: ColwiseParallel()})
    weights = [value for name, value in stack.named_parameters() if name.endswith("weight")]
    return [list(value.to_local().shape if isinstance(value, DTensor) else value.shape) for value in weights]


def mapped(ctx: Context, *, x: torch.Tensor, weight: torch.Tensor) -> Tensors:
    """A product of a tensor by columns with a weight by rows, once by a module that is distributed, once by a function.

    Each rank has a part of the sum, and both bring it together.
    """
    mesh = ctx.mesh((ctx.world_size,))
    columns = distribute_tensor(x.to(ctx.device), mesh, [Shard(1)], src_data_rank=None)
    rows = distribute_tensor(weight.to(ctx.device), mesh, [Shard(0)], src_data_rank=None)
    product = local_map(
        lambda mine, part: mine @ part,
        out_placements=[Partial()],
        in_placements=([Shard(1)], [Shard(0)]),
        in_grad_placements=None,
        device_mesh=mesh,
        redistribute_inputs=False,
    )(columns, rows)
    layer = nn.Linear(weight.shape[0], weight.shape[1], bias=False, dtype=weight.dtype, device=ctx.device)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
    distributed = distribute_module(layer, mesh, _cut, _given, _together)
    return {"function": product.full_tensor(), "module": distributed(x.to(ctx.device)).detach()}


def _cut(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, value in list(module.named_parameters(recurse=False)):
        cut = distribute_tensor(value.data, mesh, [Shard(1)], src_data_rank=None)
        module.register_parameter(key, nn.Parameter(cut))


def _given(module: nn.Module, inputs: tuple[torch.Tensor, ...], mesh: DeviceMesh) -> Any:
    return tuple(distribute_tensor(x, mesh, [Shard(1)], src_data_rank=None) for x in inputs)


def _together(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
    return output.full_tensor()
