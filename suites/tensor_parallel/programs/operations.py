"""Operations of DTensors along a dimension that ranks share, along another one, and of sums that nobody has yet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

from pytest_gpuperf import Context
from suites.shared.step import Tensors, gradient_of

Operation = Callable[[torch.Tensor, int], torch.Tensor]
"""Called as ``operation(tensor, dim)``."""

OPERATIONS: dict[str, Operation] = {
    "sum": lambda x, dim: x.sum(dim),
    "mean": lambda x, dim: x.mean(dim, keepdim=True),
    "amax": lambda x, dim: x.amax(dim),
    "amin": lambda x, dim: x.amin(dim, keepdim=True),
    "argmax": lambda x, dim: x.argmax(dim),
    "argmin": lambda x, dim: x.argmin(dim, keepdim=True),
    "variance": lambda x, dim: x.var(dim, correction=1),
    "deviation": lambda x, dim: x.std(dim, correction=0, keepdim=True),
    "1-norm": lambda x, dim: torch.linalg.vector_norm(x, 1, dim),
    "2-norm": lambda x, dim: torch.linalg.vector_norm(x, 2, dim),
    "3-norm": lambda x, dim: torch.linalg.vector_norm(x, 3, dim, keepdim=True),
    "maximum norm": lambda x, dim: torch.linalg.vector_norm(x, torch.inf, dim),
    "minimum norm": lambda x, dim: torch.linalg.vector_norm(x, -torch.inf, dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "log of softmax": lambda x, dim: x.log_softmax(dim),
    "log of exponentials": lambda x, dim: x.logsumexp(dim),
    "sorted": lambda x, dim: _scattering(x).sort(dim).values,
    "largest two": lambda x, dim: _scattering(x).topk(2, dim).values,
    "layer norm": lambda x, dim: torch.nn.functional.layer_norm(x, x.shape[1:]) * (1 + dim),
}
if torch.__version__ >= "2.12":  # compared as a version; before, DTensor cannot flip, as this one's gradient does
    OPERATIONS |= {"running sum": lambda x, dim: x.cumsum(dim)}


def _scattering(x: torch.Tensor) -> torch.Tensor:
    """A tensor whose gradient is scattered, which DTensor cannot do before 2.13: there it has none."""
    return x if torch.__version__ >= "2.13" else x.detach()  # compared as a version


def applied(operation: Operation, x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The whole result, and the whole gradient of its squares' sum, if the result has one."""
    leaf = x.detach().requires_grad_()
    result = operation(leaf, dim)
    if result.requires_grad:
        result.square().sum().backward()
    gradient = gradient_of(leaf) if result.requires_grad else None
    return _whole(result), None if gradient is None else _whole(gradient)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def operated(ctx: Context, *, x: torch.Tensor, cut: int) -> Tensors:
    """The results of all operations along both dimensions of a matrix, and its gradients, by name.

    Args:
        ctx: the rank's context.
        x: the whole matrix.
        cut: the dimension that ranks share.
    """
    mesh = ctx.mesh((ctx.world_size,))
    found: Tensors = {}
    for name, operation in OPERATIONS.items():
        for dim in range(2):
            cut_x = distribute_tensor(x.to(ctx.device), mesh, [Shard(cut)], src_data_rank=None)
            found |= named(name, dim, applied(operation, cut_x, dim))
    return found


def of_parts(ctx: Context, *, parts: list[torch.Tensor]) -> Tensors:
    """The results of all operations along both dimensions of the ranks' sum, which each has one part of, by name."""
    mesh = ctx.mesh((ctx.world_size,))
    found: Tensors = {}
    for name, operation in OPERATIONS.items():
        for dim in range(2):
            summed = DTensor.from_local(parts[ctx.rank].to(ctx.device), mesh, [Partial()], run_check=False)
            found[f"{name} along {dim}"] = _whole(operation(summed, dim))
    return found


def named(name: str, dim: int, results: tuple[torch.Tensor, torch.Tensor | None]) -> Tensors:
    """What ``applied`` returns, by names that say the operation and the dimension."""
    result, gradient = results
    found = {f"{name} along {dim}": result}
    return found if gradient is None else found | {f"gradient of {name} along {dim}": gradient}
