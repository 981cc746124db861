"""The layer with the exchange of ``suites.shared.experts``: padded or exact splits, in one piece or in chunks."""

from __future__ import annotations

import torch
from torch import nn

from pytest_gpuperf import Context
from suites.shared.experts import chosen_by, expert_exchange, lanes


def exchanging_layer(
    ctx: Context,
    parameters: nn.ParameterDict,
    x: torch.Tensor,
    *,
    k: int,
    capacity: int,
    gate: str,
    padded: bool,
    chunks: int,
) -> torch.Tensor:
    """The layer with this exchange; called like ``expert_parallel``.

    Raises:
        ValueError: as ``expert_parallel``.
    """
    weights, chosen = chosen_by(parameters["gate"], x, k=k, capacity=capacity, gate=gate)
    return expert_exchange(
        ctx, parameters, x, weights, chosen, capacity=capacity, padded=padded, lanes=lanes(ctx, chunks)
    )
