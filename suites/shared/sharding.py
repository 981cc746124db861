"""How ranks share tensors: by torch.distributed.tensor's rule, whoever splits them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of

Module = TypeVar("Module", bound=nn.Module)


def shard(tensor: torch.Tensor, degree: int, dim: int) -> list[torch.Tensor]:
    """The shards of DTensor's ``Shard(dim)``: those of torch.chunk, and empty ones for the ranks after them."""
    chunks = tensor.chunk(degree, dim)
    return [*chunks, *[tensor.narrow(dim, 0, 0)] * (degree - len(chunks))]


def per_rank(whole: Tensors, degree: int, dims: Mapping[str, int]) -> list[Tensors]:
    """What each rank should hold: its shard along the dimension given for a name, and all of the others."""
    results: list[Tensors] = [{} for _ in range(degree)]
    for name, tensor in whole.items():
        parts = shard(tensor, degree, dims[name]) if name in dims else [tensor] * degree
        for result, part in zip(results, parts, strict=True):
            result[name] = part
    return results


def parallelized(ctx: Context, module: Module, plan: ParallelStyle | dict[str, ParallelStyle]) -> Module:
    """The module split by the plan over all ranks; without messages, since all ranks have all of its parameters."""
    parallelize_module(module, ctx.mesh((ctx.world_size,)), plan, src_data_rank=None)
    return module


def parameters_on_device(ctx: Context, parameters: Tensors) -> Tensors:
    """The parameters on this rank's device."""
    return {name: value.to(ctx.device) for name, value in parameters.items()}


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of this rank's shard of a DTensor, or of all of another tensor."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    # Functional collectives give back a tensor before its values have arrived (AsyncCollectiveTensor). Only
    # arithmetic waits for them: neither a view does, nor pickle.
    return local.detach().clone()


def local_gradient(leaf: torch.Tensor, name: str = "the leaf") -> torch.Tensor:
    """This rank's shard, or all of it, of a leaf's gradient; of a DTensor as much of it as of the leaf.

    Backward may leave a gradient as a sum of the ranks' or, of an embedding, whole on all ranks; an optimizer
    then does what is done here.
    """
    gradient = gradient_of(leaf, name)
    if isinstance(leaf, DTensor) and isinstance(gradient, DTensor):
        gradient = gradient.redistribute(placements=leaf.placements)
    return local_tensor(gradient)


def is_registered(group: dist.ProcessGroup, rank: int) -> bool:
    """Whether the group still belongs to the running test: it is destroyed with its default group."""
    try:
        dist.get_group_rank(group, rank)
    except ValueError:
        return False
    return True
