"""What linear layers are given.

Inputs, weights and output gradients are whole numbers in float64. Every sum and product then stays a whole
number far below 2**53, so that no order of the additions, and no split of them over ranks, rounds anything.
"""

from __future__ import annotations

import torch

from suites.data import integers
from suites.tensor_parallel.sharding import Parameters

DTYPE = torch.float64

# Nothing is rounded: see above. The largest number is an output of the MLP, of 8 hidden features and 5 inputs
# of at most 15 each: (15 * 15 * 5 + 60) * 15 * 8 + 60 < 2**18.
EXACT = 0.0


def parameters(*shapes: tuple[str, int, int], degree: int, bias: bool, seed: int) -> Parameters:
    """A weight for each (prefix, outputs, inputs), and a bias if asked for.

    A row-parallel layer adds a share of its bias, bias / R, on each rank: multiples of R have whole shares.
    """
    drawn = {}
    for index, (prefix, outputs, inputs) in enumerate(shapes):
        drawn[f"{prefix}weight"] = integers((outputs, inputs), DTYPE, seed=seed * 16 + 2 * index)
        if bias:
            drawn[f"{prefix}bias"] = degree * integers((outputs,), DTYPE, seed=seed * 16 + 2 * index + 1)
    return drawn


def x_and_grad(batch: tuple[int, ...], inputs: int, outputs: int, seed: int) -> dict[str, torch.Tensor]:
    """The input and the gradient of the output, the same for all ranks."""
    return {
        "x": integers((*batch, inputs), DTYPE, seed=seed * 16 + 14),
        "grad": integers((*batch, outputs), DTYPE, seed=seed * 16 + 15),
    }
