"""A linear layer whose weight and input are split over a mesh of two axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, distribute_tensor
from torch.nn import functional

from pytest_gpuperf import Context
from suites.shared.sharding import local_gradient, local_tensor
from suites.shared.step import Step, Tensors


def two_dimensional_linear(
    ctx: Context,
    *,
    x: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    mesh_shape: tuple[int, int],
    x_placements: Sequence[Placement],
    weight_placements: Sequence[Placement],
    stored_placements: Sequence[Placement] | None = None,
) -> Step[Tensors]:
    """A product of DTensors on a mesh of two axes; the step returns the whole output and each rank's gradients.

    Args:
        ctx: the rank's context.
        x: the whole input.
        grad: the gradient of the whole output.
        weight: the whole weight.
        mesh_shape: ranks along each axis.
        x_placements: what each axis does to the input.
        weight_placements: what each axis does to the weight.
        stored_placements: how the weight's shards lie in fact; by default as ``weight_placements`` say.
    """
    if math.prod(mesh_shape) != ctx.world_size:
        raise ValueError(
            f"a mesh of {mesh_shape[0]} x {mesh_shape[1]} ranks has {math.prod(mesh_shape)}, the world {ctx.world_size}"
        )
    mesh = ctx.mesh(mesh_shape)
    stored = distribute_tensor(
        weight.to(ctx.device), mesh, stored_placements or weight_placements, src_data_rank=None
    ).to_local()
    shards = DTensor.from_local(
        stored, mesh, weight_placements, shape=weight.shape, stride=weight.stride(), run_check=False
    )
    leaves: dict[str, Any] = {
        "input": distribute_tensor(x.to(ctx.device), mesh, x_placements, src_data_rank=None).requires_grad_(),
        "weight": shards.detach().requires_grad_(),
    }
    grad = grad.to(ctx.device)

    def step() -> Tensors:
        product = functional.linear(leaves["input"], leaves["weight"])
        assert isinstance(product, DTensor)
        output = product.full_tensor()
        output.backward(grad)
        results = {"output": local_tensor(output)}
        for name, leaf in leaves.items():
            results[f"{name} gradient"] = local_gradient(leaf)
            leaf.grad = None
        return results

    return step


def two_dimensional_linear_with_swapped_axes(ctx: Context, *, weight_placements: Any, **kwargs: Any) -> Step[Tensors]:
    """Wrong on purpose: the weight's shards lie as if the mesh's axes had changed places."""
    swapped = tuple(reversed(weight_placements))
    return two_dimensional_linear(ctx, weight_placements=weight_placements, stored_placements=swapped, **kwargs)
