"""A split model some of whose parameters do not train.

N tokens, V vocabulary, W width, F hidden features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from pytest_gpuperf import Context
from suites.shared.sharding import local_tensor, parallelized, parameters_on_device
from suites.shared.step import Tensors
from suites.tensor_parallel.programs.linear_layers import linear

TokensAndGrad = tuple[torch.Tensor, torch.Tensor]
"""Tokens, [N], and the gradient of the outputs, [N, W]."""


class EveryStyle(nn.Module):
    """Two embeddings, which are added, and two linear layers: each kind split by rows and by columns."""

    def __init__(self, parameters: Tensors) -> None:
        super().__init__()
        self.by_words = nn.Embedding.from_pretrained(parameters["by_words.weight"], freeze=False)
        self.by_features = nn.Embedding.from_pretrained(parameters["by_features.weight"], freeze=False)
        self.first, self.second = (
            linear({part: parameters[f"{name}.{part}"] for part in ("weight", "bias")}) for name in ("first", "second")
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Outputs, [N, W]."""
        embedded = self.by_words(tokens) + self.by_features(tokens)
        output: torch.Tensor = self.second(self.first(embedded).relu())
        return output


def styles() -> dict[str, ParallelStyle]:
    """How each of its layers is split."""
    return {
        "by_words": RowwiseParallel(input_layouts=Replicate()),
        "by_features": ColwiseParallel(output_layouts=Replicate()),
        "first": ColwiseParallel(),
        "second": RowwiseParallel(),
    }


def partly_frozen(
    ctx: Context,
    *,
    parameters: Tensors,
    frozen: Sequence[frozenset[str]],
    batches: Sequence[TokensAndGrad],
    rate: float,
) -> list[tuple[set[str], Tensors]]:
    """Trains models that are frozen before they are split, by SGD of all parameters, frozen ones too.

    Args:
        ctx: the rank's context.
        parameters: the initial ones.
        frozen: the names of those that do not train, for each model.
        batches: of each step.
        rate: of the descent.

    Returns:
        For each model the names of the parameters that train once it is split, and this rank's shards at last.
    """
    told = []
    for names in frozen:
        model = EveryStyle(parameters_on_device(ctx, parameters))
        for name in names:
            model.get_parameter(name).requires_grad_(False)
        parallelized(ctx, model, styles())
        trains = {name for name, value in model.named_parameters() if value.requires_grad}
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for tokens, grad in batches:
            optimizer.zero_grad()
            model(tokens.to(ctx.device)).backward(grad.to(ctx.device))
            optimizer.step()
        told.append((trains, {name: local_tensor(value) for name, value in model.named_parameters()}))
    return told
