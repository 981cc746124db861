"""Layers split over R ranks by torch.distributed.tensor.parallel, and all-gather with matmul.

M, K, N: the product's matrices are M x K and K x N. A tensor-parallel layer's input and output gradient are
the same on all ranks by definition; what differs by rank is the shard of the weights that each rank holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pytest_gpuperf import Context

Parameters = dict[str, torch.Tensor]
Step = Callable[[], dict[str, torch.Tensor]]


def shard(tensor: torch.Tensor, degree: int, dim: int) -> list[torch.Tensor]:
    """The shards of DTensor's ``Shard(dim)``: those of torch.chunk, and empty ones for the ranks after them."""
    chunks = tensor.chunk(degree, dim)
    return [*chunks, *[tensor.narrow(dim, 0, 0)] * (degree - len(chunks))]


def linear(parameters: Parameters) -> nn.Linear:
    """The layer with these parameters: ``weight`` and, where there is one, ``bias``."""
    weight = parameters["weight"]
    module = nn.Linear(weight.shape[1], weight.shape[0], "bias" in parameters, weight.device, weight.dtype)
    module.load_state_dict(parameters)
    return module


def two_layers(parameters: Parameters) -> nn.Sequential:
    """Linear, ReLU, linear; the parameters' names begin with the layer's place, ``0.`` or ``2.``.

    ReLU, since it keeps whole numbers whole: the results are exact.
    """
    first, second = (
        linear({name[2:]: value for name, value in parameters.items() if name.startswith(place)})
        for place in ("0.", "2.")
    )
    return nn.Sequential(first, nn.ReLU(), second)


def training_step(module: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> Step:
    """A step of forward and backward; it returns the output and every gradient, of DTensors this rank's shard.

    Args:
        module: the layer, on one device or split.
        x: what this rank gives to it.
        grad: the gradient of what it returns on this rank.
    """
    x = x.detach().requires_grad_()

    def step() -> dict[str, torch.Tensor]:
        x.grad = None
        module.zero_grad()
        output = module(x)
        output.backward(grad)
        gradients = {"input": x.grad, **{name: value.grad for name, value in module.named_parameters()}}
        return {"output": _local(output)} | {f"{name} gradient": _local(g) for name, g in gradients.items()}

    return step


def _local(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None  # backward has reached it
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    # Functional collectives give back a tensor before its values have arrived (AsyncCollectiveTensor). Only
    # arithmetic waits for them: neither a view does, nor pickle.
    return local.detach().clone()


def _mesh(ctx: Context) -> DeviceMesh:
    return init_device_mesh(ctx.device.type, (ctx.world_size,))


def _on_device(ctx: Context, parameters: Parameters) -> Parameters:
    return {name: value.to(ctx.device) for name, value in parameters.items()}


def _mine(ctx: Context, tensor: torch.Tensor, *, sharded: bool) -> torch.Tensor:
    """The whole tensor, or this rank's shard of its last dimension."""
    tensor = tensor.to(ctx.device)
    return shard(tensor, ctx.world_size, -1)[ctx.rank] if sharded else tensor


def column_parallel_linear(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters, gather_output: bool
) -> Step:
    """Each rank computes some of the output features; the step returns them, or all if ``gather_output``."""
    style = ColwiseParallel(output_layouts=Replicate()) if gather_output else ColwiseParallel()
    layer = parallelize_module(linear(_on_device(ctx, parameters)), _mesh(ctx), style)
    return training_step(layer, x.to(ctx.device), _mine(ctx, grad, sharded=not gather_output))


def column_parallel_linear_without_input_gradient_reduction(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters
) -> Step:
    """Wrong on purpose: each rank's input gradient knows only of the rank's own output features."""
    mine = {name: shard(value, ctx.world_size, 0)[ctx.rank] for name, value in parameters.items()}
    return training_step(linear(_on_device(ctx, mine)), x.to(ctx.device), _mine(ctx, grad, sharded=True))


def row_parallel_linear(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters, input_is_sharded: bool
) -> Step:
    """Each rank multiplies some of the input features; the products are summed over the ranks.

    Each rank is given only its features if ``input_is_sharded``, and takes them from all of them otherwise.
    """
    style = RowwiseParallel() if input_is_sharded else RowwiseParallel(input_layouts=Replicate())
    layer = parallelize_module(linear(_on_device(ctx, parameters)), _mesh(ctx), style)
    return training_step(layer, _mine(ctx, x, sharded=input_is_sharded), grad.to(ctx.device))


def row_parallel_linear_without_all_reduce(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters
) -> Step:
    """Wrong on purpose: each rank keeps its own summand of the output."""
    style = RowwiseParallel(output_layouts=Partial())
    layer = parallelize_module(linear(_on_device(ctx, parameters)), _mesh(ctx), style)
    return training_step(layer, _mine(ctx, x, sharded=True), grad.to(ctx.device))


def row_parallel_linear_with_bias_on_every_rank(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters
) -> Step:
    """Wrong on purpose: the sum over the ranks holds the bias R times."""
    repeated = {**parameters, "bias": parameters["bias"] * ctx.world_size}
    return row_parallel_linear(ctx, x=x, grad=grad, parameters=repeated, input_is_sharded=True)


def _split_mlp(
    ctx: Context, parameters: Parameters, *, gather_hidden: bool = False, local_hidden: bool = True
) -> nn.Module:
    column = ColwiseParallel(use_local_output=local_hidden)
    row = RowwiseParallel()
    if gather_hidden:
        column, row = ColwiseParallel(output_layouts=Replicate()), RowwiseParallel(input_layouts=Replicate())
    return parallelize_module(two_layers(_on_device(ctx, parameters)), _mesh(ctx), {"0": column, "2": row})


def mlp(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters, local_hidden: bool = True
) -> Step:
    """A column-parallel layer, ReLU, and a row-parallel layer.

    The hidden features pass between them as each rank's plain tensor if ``local_hidden``, as a DTensor
    otherwise. Only the DTensor knows the features of all ranks where R does not divide them: from a plain
    one the row-parallel layer concludes R times its size, and raises.
    """
    module = _split_mlp(ctx, parameters, local_hidden=local_hidden)
    return training_step(module, x.to(ctx.device), grad.to(ctx.device))


def mlp_collectives(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters, gather_hidden: bool
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


def matmul_inputs(ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's M/R rows of A and its own B of N/R columns, normal, scaled so that products are normal too.

    Not whole numbers, whose few set bits would draw less power than training does, and clock higher.
    """
    generator = ctx.generator()
    rows, columns = m // ctx.world_size, n // ctx.world_size
    a = torch.randn(rows, k, dtype=dtype, device=ctx.device, generator=generator)
    b = torch.randn(k, columns, dtype=dtype, device=ctx.device, generator=generator)
    return a, b / math.sqrt(k)


def all_gather_then_matmul(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """All of A times the rank's B: gathers first, then multiplies."""
    a, b = matmul_inputs(ctx, m=m, k=k, n=n, dtype=dtype)
    gathered = torch.empty(a.shape[0] * ctx.world_size, k, dtype=dtype, device=ctx.device)

    def step() -> torch.Tensor:
        dist.all_gather_into_tensor(gathered, a)
        return torch.matmul(gathered, b)

    return step


def fused_all_gather_matmul(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """The same product, each shard of A multiplied while the next one is copied from its rank's memory."""
    # Registers torch.ops.symm_mem; here, since the module is alpha, and nothing else should depend on it.
    import torch.distributed._symmetric_memory

    a, b = matmul_inputs(ctx, m=m, k=k, n=n, dtype=dtype)
    group_name = ctx.group.group_name
    # Loads the kernel that multiplies one shard. CUDA loads kernels when they are first launched and waits for the
    # device meanwhile; were that within the fused step, the device could be waiting for a peer whose host is stuck
    # in the same load: a deadlock (seen once in 12 launches on H200, torch 2.11).
    torch.mm(a, b)

    def step() -> torch.Tensor:
        # return_A=False: the gathered A is no output, and the rank's own shard need not be copied into it.
        _, products = torch.ops.symm_mem.fused_all_gather_matmul(
            a, [b], gather_dim=0, group_name=group_name, return_A=False
        )
        product: torch.Tensor = products[0]
        return product

    return step
