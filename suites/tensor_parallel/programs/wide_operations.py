"""Tables of operations on one tensor, which ranks share or one device has, and their results and gradients."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of

Operations = dict[str, Callable[[torch.Tensor], torch.Tensor | Sequence[torch.Tensor]]]
"""By name. What detaches its tensor has no gradient to compare: DTensor refuses to compute it."""


def lacks_rules() -> bool:
    """Whether DTensors of this torch refuse some of the operations."""
    return torch.__version__ < "2.13"  # compared as a version


def whole(x: torch.Tensor, values: object) -> torch.Tensor:
    """A tensor of these values, in float64 if they are no integers; whole on each rank if ranks share ``x``."""
    given = torch.tensor(values)
    given = given if given.dtype == torch.int64 else given.double()
    if not isinstance(x, DTensor):
        return given
    mesh = x.device_mesh
    return distribute_tensor(given.to(x.device), mesh, [Replicate()] * mesh.ndim, src_data_rank=None)


def numbers(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """0, 1, 2, ... of this shape, integers; whole on each rank if ranks share ``x``."""
    return whole(x, torch.arange(torch.Size(shape).numel()).view(shape).tolist())


def results(operations: Operations, x: torch.Tensor, *, partly: bool = False) -> Tensors:
    """The whole results of all operations by name, and gradients of a sum of their squares that weighs each output.

    Args:
        operations: what is applied.
        x: the tensor that each takes.
        partly: whether an operation that DTensor refuses is left out.

    Raises:
        NotImplementedError, RuntimeError, IndexError: DTensor refuses an operation.
    """
    found: Tensors = {}
    for name, operation in operations.items():
        leaf = x.detach().requires_grad_()
        try:
            result = operation(leaf)
            outputs = [result] if isinstance(result, torch.Tensor) else list(result)
            found |= {f"{name}, {number}": _whole(output) for number, output in enumerate(outputs)}
            if outputs[0].requires_grad:
                torch.stack([n * output.square().sum() for n, output in enumerate(outputs, 1)]).sum().backward()
                found[f"gradient of {name}"] = _whole(gradient_of(leaf))
        except (NotImplementedError, RuntimeError, IndexError):
            if not partly:
                raise
    return found


def chosen(operations: Operations, names: Sequence[str] | None) -> Operations:
    """Returns the operations that have one of these names, or all."""
    return operations if names is None else {name: operations[name] for name in names}


def shared(
    ctx: Context,
    *,
    x: torch.Tensor,
    table: str,
    mesh: tuple[int, ...],
    placements: Sequence[Placement],
    names: Sequence[str] | None = None,
) -> Tensors:
    """The results of a module's operations on a tensor that the ranks share.

    Args:
        ctx: the rank's context.
        x: the whole tensor.
        table: the module that has the operations.
        mesh: the shape of the mesh.
        placements: how each axis of the mesh cuts the tensor.
        names: of the operations; by default all.
    """
    operations = chosen(importlib.import_module(table).OPERATIONS, names)
    cut = distribute_tensor(x.to(ctx.device), ctx.mesh(mesh), placements, src_data_rank=None)
    return results(operations, cut, partly=lacks_rules())


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()
