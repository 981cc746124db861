"""Embedding, logits and loss split over R ranks by vocabulary.

N tokens, W width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel
from torch.nn import functional

from pytest_gpuperf import Context
from suites.shared.sharding import local_gradient, local_tensor, parallelized, parameters_on_device
from suites.shared.step import Step, Tensors
from suites.tensor_parallel.programs.linear_layers import linear


class LanguageModel(nn.Module):
    """An embedding, and the logits of the next token."""

    def __init__(self, parameters: Tensors):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(parameters["embedding.weight"], freeze=False)
        self.head = linear({"weight": parameters["head.weight"]})


Loss = Callable[..., torch.Tensor]
"""``loss(logits_NV, target_N, reduction=, ignore_index=)``, of logits that are a DTensor sharded by vocabulary."""


def vocabulary_parallel(
    ctx: Context,
    *,
    tokens: torch.Tensor,
    target: torch.Tensor,
    parameters: Tensors,
    reduction: Literal["mean", "sum", "none"],
    loss: Loss = functional.cross_entropy,
    lookup: Callable[[Context, nn.Module, torch.Tensor], torch.Tensor] | None = None,
) -> Step[Tensors]:
    """Embedding, logits and cross-entropy, each rank with some of the vocabulary; no rank ever has all logits.

    Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3. The step returns what was looked up, the loss, and
    each rank's shard of the gradients.

    Args:
        ctx: the rank's context.
        tokens: what is looked up, [N].
        target: the next token of each, or -100 for those that don't count.
        parameters: ``embedding.weight`` and ``head.weight``, both [V, W].
        reduction: of the loss.
        loss: computes it within torch's ``loss_parallel``.
        lookup: takes the place of the row-wise parallel embedding.
    """
    model = parallelized(
        ctx,
        LanguageModel(parameters_on_device(ctx, parameters)),
        {"embedding": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(use_local_output=False)},
    )
    tokens, target = tokens.to(ctx.device), target.to(ctx.device)

    def step() -> Tensors:
        model.zero_grad()
        embedded = lookup(ctx, model.embedding, tokens) if lookup else model.embedding(tokens)
        with loss_parallel():  # backward too
            losses = loss(model.head(embedded), target, reduction=reduction, ignore_index=-100)
            losses.sum().backward()
        gradients = {f"{name} gradient": local_gradient(value) for name, value in model.named_parameters()}
        return {"embedded": local_tensor(embedded), "loss": local_tensor(losses), **gradients}

    return step


def vocabulary_parallel_without_mask(ctx: Context, **kwargs: Any) -> Step[Tensors]:
    """Wrong on purpose: a rank that lacks a token gives some row of its own, instead of zeros, to the sum."""
    return vocabulary_parallel(ctx, lookup=_lookup_without_mask, **kwargs)


def _lookup_without_mask(ctx: Context, embedding: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    assert isinstance(embedding.weight, DTensor)
    rows = embedding.weight.to_local()
    summand = functional.embedding(tokens % len(rows), rows)
    mesh = embedding.weight.device_mesh
    return DTensor.from_local(summand, mesh, [Partial()]).redistribute(placements=[Replicate()]).to_local()


def vocabulary_parallel_with_normalizers_of_shards(ctx: Context, **kwargs: Any) -> Step[Tensors]:
    """Wrong on purpose: each rank's softmax knows of its own logits alone."""
    return vocabulary_parallel(ctx, loss=_loss_of_shard, **kwargs)


def _loss_of_shard(logits: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    mine = _shard_of(logits)
    return functional.cross_entropy(mine, torch.where(target < 0, target, target % mine.shape[-1]), **kwargs)


def vocabulary_parallel_with_all_logits(ctx: Context, **kwargs: Any) -> Step[Tensors]:
    """Wrong on purpose: the loss is right, but every rank gathers all logits for it."""
    return vocabulary_parallel(ctx, loss=_loss_of_all_logits, **kwargs)


def _loss_of_all_logits(logits: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    assert isinstance(logits, DTensor)
    whole = logits.redistribute(placements=[Replicate()]).to_local()
    return functional.cross_entropy(whole, target, **kwargs)


def _shard_of(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()
