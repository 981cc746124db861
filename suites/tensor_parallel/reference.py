"""What layers are given, and what the whole layer gives.

Inputs, weights and output gradients are whole numbers in float64. Every sum and product then stays a whole
number far below 2**53, so that no order of the additions, and no split of them over ranks, rounds anything.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from suites.shared.inputs import integers
from suites.shared.references import by_autograd
from suites.shared.step import Tensors

DTYPE = torch.float64

# Nothing is rounded, and comparisons are exact: see above. The largest number is an output of the MLP, of 8 hidden
# features and 5 inputs of at most 15 each: (15 * 15 * 5 + 60) * 15 * 8 + 60 < 2**18.


def parameters(*shapes: tuple[str, int, int], degree: int, bias: bool, seed: int) -> Tensors:
    """A weight for each (prefix, outputs, inputs), and a bias if asked for.

    A row-parallel layer adds a share of its bias, bias / R, on each rank: multiples of R have whole shares.
    """
    drawn = {}
    for index, (prefix, outputs, inputs) in enumerate(shapes):
        drawn[f"{prefix}weight"] = integers((outputs, inputs), DTYPE, seed=seed * 16 + 2 * index)
        if bias:
            drawn[f"{prefix}bias"] = degree * integers((outputs,), DTYPE, seed=seed * 16 + 2 * index + 1)
    return drawn


def x_and_grad(batch: tuple[int, ...], inputs: int, outputs: int, seed: int) -> Tensors:
    """The input and the gradient of the output, the same for all ranks."""
    return {
        "x": integers((*batch, inputs), DTYPE, seed=seed * 16 + 14),
        "grad": integers((*batch, outputs), DTYPE, seed=seed * 16 + 15),
    }


def linear(leaves: Tensors, prefix: str = "") -> torch.Tensor:
    """The formula of the layer whose parameters have this prefix."""
    return functional.linear(leaves["input"], leaves[f"{prefix}weight"], leaves.get(f"{prefix}bias"))


def whole_layer(
    layer: Callable[[Tensors], torch.Tensor], parameters: Tensors, *, x: torch.Tensor, grad: torch.Tensor
) -> Tensors:
    """The output of the layer with this formula, and the gradients of its input and of its parameters."""
    return by_autograd(layer, {"input": x, **parameters}, grad)
