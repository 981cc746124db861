"""Norms of gradients, in float32 if they have 16 bits: a norm that 16 bits round is off by 2**-9 of itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of each, by one kernel where there is one; of local tensors of one dtype."""
    exact = torch.promote_types(gradients[0].dtype, torch.float32)
    return torch.stack(torch._foreach_norm(list(gradients), 2, exact))


def squared_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of all squares."""
    return norms(gradients).square().sum()
