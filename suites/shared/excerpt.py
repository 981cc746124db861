"""What a raced step returns of large tensors: so few numbers that they can travel, and be compared on every rank."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suites.shared.step import Tensors

NUMBERS = 4096
"""Elements of each tensor, at most twice as many."""


def excerpt(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Elements of each tensor, evenly spread, in units of their root mean square; and the logarithm of that.

    So an absolute tolerance means the same for all of them: a share of the usual size. All of it is float32. A tensor
    of zeros gives NaN, which equals nothing.
    """
    found: Tensors = {}
    for name, tensor in tensors.items():
        sample = spread(tensor)
        size = sample.square().mean().sqrt()
        found[name] = sample / size
        found[f"{name}, size"] = size.log()
    return found


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The elements that ``excerpt`` takes, as float32."""
    # Odd, so that the elements come from all columns of a matrix, whose width is a power of 2 as a rule.
    stride = max(1, tensor.numel() // NUMBERS) | 1
    return tensor.detach().reshape(-1)[::stride].float()
