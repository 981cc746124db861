"""The two ends of a tensor-parallel region, as autograd functions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Copy(torch.autograd.Function):
    """Into a tensor-parallel region."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Returns the input."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        """Adds up the gradients of the ranks."""
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class Reduce(torch.autograd.Function):
    """Out of a tensor-parallel region."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Adds up what the ranks hold."""
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        """Returns the gradient."""
        return g
