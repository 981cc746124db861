"""Embedding, logits and loss split over R ranks by vocabulary.

N tokens, W width, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional

from pytest_gpuperf import Context
from suites.shared.inputs import overwrite
from suites.shared.sharding import local_gradient, local_tensor, parallelized, parameters_on_device
from suites.shared.step import Step, Tensors
from suites.tensor_parallel.programs.linear_layers import linear

Reduction = Literal["mean", "sum", "none"]


class LanguageModel(nn.Module):
    """An embedding, and the logits of the next token."""

    def __init__(self, parameters: Tensors):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(parameters["embedding.weight"], freeze=False)
        self.head = linear({"weight": parameters["head.weight"]})


def vocabulary_parallel(
    ctx: Context, *, batches: Sequence[tuple[torch.Tensor, torch.Tensor, Tensors]], reduction: Reduction
) -> Step[Tensors]:
    """Embedding, logits and cross-entropy, each rank with some of the vocabulary; no rank ever has all logits.

    Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3. The step returns what was looked up, the loss, and
    each rank's shard of the gradients.

    Args:
        ctx: the rank's context.
        batches: of each step in turn what is looked up, [N]; the next token of each, or -100 for those that don't
            count; and the values of ``embedding.weight`` and ``head.weight``, both [V, W], in that step.
        reduction: of the loss.
    """
    model = parallelized(
        ctx,
        LanguageModel(parameters_on_device(ctx, batches[0][2])),
        {"embedding": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(use_local_output=False)},
    )
    steps = enumerate(itertools.cycle(batches))

    def step() -> Tensors:
        number, (tokens, target, parameters) = next(steps)
        if number:  # the first step has those that the model was split with
            overwrite(model, parameters)
        model.zero_grad()
        embedded = model.embedding(tokens.to(ctx.device))
        with loss_parallel():  # backward too
            losses = functional.cross_entropy(
                model.head(embedded), target.to(ctx.device), reduction=reduction, ignore_index=-100
            )
            losses.sum().backward()
        gradients = {f"{name} gradient": local_gradient(value) for name, value in model.named_parameters()}
        return {"embedded": local_tensor(embedded), "loss": local_tensor(losses), **gradients}

    return step


def cut_embedding(ctx: Context, *, tokens: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, dim: int) -> Tensors:
    """What is looked up in an embedding that is split by words, of which each rank keeps a part.

    Args:
        ctx: the rank's context.
        tokens: all that are looked up, [B, S].
        weight: the whole one, [V, W].
        grad: the gradient of the whole output, [B, S, W].
        dim: of the output, along which it is cut.
    """
    table = nn.Embedding.from_pretrained(weight.to(ctx.device), freeze=False)
    style = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(dim))
    parallelize_module(table, ctx.mesh((ctx.world_size,)), style)
    embedded: torch.Tensor = table(tokens.to(ctx.device))
    embedded.backward(grad.chunk(ctx.world_size, dim)[ctx.rank].to(ctx.device))
    return {"embedded": embedded.detach(), "weight gradient": local_gradient(table.weight)}
