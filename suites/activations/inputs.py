"""What the blocks are given.

Inputs, weights and output gradients are whole numbers in float64: nothing is rounded, and results are equal.
"""

from __future__ import annotations

from typing import Any

import torch

from suites.data import integers

DTYPE = torch.float64

# Nothing is rounded: inputs are at most 3, weights 2; with 4 hidden and 3 other features a block multiplies an
# input or a gradient by at most 3 * 2 * 4 * 2 = 48. After 3 blocks both are at most 3 * 48**3 < 2**19, and a
# weight's gradient, the sum over 3 rows of a product of an input and a gradient, is below 2**40.
EXACT = 0.0

Arguments = dict[str, Any]


def arguments(*, blocks: int, rows: int, width: int, hidden: int, dropout: bool, seed: int) -> Arguments:
    """What all ranks are given; each makes its own input and gradient of it in ``own``."""
    weights = [
        (
            integers((hidden, width), DTYPE, seed=seed * 16 + 2 * index, low=-2, high=2),
            integers((width, hidden), DTYPE, seed=seed * 16 + 2 * index + 1, low=-2, high=2),
        )
        for index in range(blocks)
    ]
    return {"weights": weights, "dropout": dropout, **own(0, rows, width, seed)}


def own(rank: int, rows: int, width: int, seed: int) -> Arguments:
    """A rank's input and the gradient of its output."""
    x, grad = (integers((rows, width), DTYPE, seed=seed * 64 + 2 * rank + i, low=-3, high=3) for i in range(2))
    return {"x": x, "grad": grad}
