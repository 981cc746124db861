"""A linear layer whose weight and input are split over a mesh of two axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor, Placement, distribute_tensor
from torch.nn import functional

from pytest_gpuperf import Context
from suites.shared.inputs import Given
from suites.shared.sharding import local_gradient, local_tensor
from suites.shared.step import Step, Tensors


def two_dimensional_linear(
    ctx: Context,
    *,
    given: Sequence[Given],
    mesh_shape: tuple[int, int],
    x_placements: Sequence[Placement],
    weight_placements: Sequence[Placement],
) -> Step[Tensors]:
    """A product of DTensors on a mesh of two axes; the step returns the whole output and each rank's gradients.

    Args:
        ctx: the rank's context.
        given: to each step in turn: the whole input, the gradient of the whole output, and the whole ``weight``.
        mesh_shape: ranks along each axis.
        x_placements: what each axis does to the input.
        weight_placements: what each axis does to the weight.
    """
    if math.prod(mesh_shape) != ctx.world_size:
        raise ValueError(
            f"a mesh of {mesh_shape[0]} x {mesh_shape[1]} ranks has {math.prod(mesh_shape)}, the world {ctx.world_size}"
        )
    mesh = ctx.mesh(mesh_shape)

    def split(tensor: torch.Tensor, placements: Sequence[Placement]) -> DTensor:
        return distribute_tensor(tensor.to(ctx.device), mesh, placements, src_data_rank=None)

    weight = split(given[0].parameters["weight"], weight_placements).requires_grad_()
    steps = itertools.cycle(given)

    def step() -> Tensors:
        now = next(steps)
        with torch.no_grad():
            weight.copy_(split(now.parameters["weight"], weight_placements))
        weight.grad = None
        x = split(now.x, x_placements).requires_grad_()
        product = functional.linear(x, weight)
        assert isinstance(product, DTensor)
        output = product.full_tensor()
        output.backward(now.grad.to(ctx.device))
        return {
            "output": local_tensor(output),
            "input gradient": local_gradient(x),
            "weight gradient": local_gradient(weight),
        }

    return step
