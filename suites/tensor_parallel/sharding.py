"""A layer's parameters, and how torch.distributed.tensor.parallel splits them over R ranks.

A tensor-parallel layer's input and output gradient are the same on all ranks by definition; what differs by rank is the
shard of the weights that each rank holds.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from pytest_gpuperf import Context

Parameters = dict[str, torch.Tensor]
Module = TypeVar("Module", bound=nn.Module)


def shard(tensor: torch.Tensor, degree: int, dim: int) -> list[torch.Tensor]:
    """The shards of DTensor's ``Shard(dim)``: those of torch.chunk, and empty ones for the ranks after them."""
    chunks = tensor.chunk(degree, dim)
    return [*chunks, *[tensor.narrow(dim, 0, 0)] * (degree - len(chunks))]


def _mesh(ctx: Context) -> DeviceMesh:
    return ctx.mesh((ctx.world_size,))


def parallelized(ctx: Context, module: Module, plan: ParallelStyle | dict[str, ParallelStyle]) -> Module:
    """The module split by the plan; without messages, since all ranks have all of its parameters."""
    parallelize_module(module, _mesh(ctx), plan, src_data_rank=None)
    return module


def on_device(ctx: Context, parameters: Parameters) -> Parameters:
    """The parameters on this rank's device."""
    return {name: value.to(ctx.device) for name, value in parameters.items()}
