"""A step of forward and backward through a layer, and this rank's part of what it leaves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

Step = Callable[[], dict[str, torch.Tensor]]


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
        leaves = {"input": x, **dict(module.named_parameters())}
        return {"output": local_tensor(output)} | {
            f"{name} gradient": local_gradient(leaf) for name, leaf in leaves.items()
        }

    return step


def local_gradient(leaf: torch.Tensor) -> torch.Tensor:
    """This rank's shard, or all of it, of a leaf's gradient; of a DTensor as much of it as of the leaf.

    Backward may leave a gradient as a sum of the ranks' or, of an embedding, whole on all ranks; an optimizer
    then does what is done here.
    """
    gradient = leaf.grad
    assert gradient is not None  # backward has reached it
    if isinstance(leaf, DTensor) and isinstance(gradient, DTensor):
        gradient = gradient.redistribute(placements=leaf.placements)
    return local_tensor(gradient)


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of this rank's shard of a DTensor, or of all of another tensor."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    # Functional collectives give back a tensor before its values have arrived (AsyncCollectiveTensor). Only
    # arithmetic waits for them: neither a view does, nor pickle.
    return local.detach().clone()
