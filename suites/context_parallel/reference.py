"""Attention of the whole sequence from its definition, and whether ranks hold their parts of it.

Queries, keys, values and output gradients are quarters between -1 and 1, exact in every dtype drawn. Softmax is not
exact; ``rounding`` bounds what its rounding may do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.context_parallel.bounds import Arithmetic, bounds, in_kernels
from suites.context_parallel.programs import racing
from suites.context_parallel.programs.attention import SEQUENCE, Layout
from suites.shared.comparison import assert_within
from suites.shared.inputs import integers
from suites.shared.references import by_autograd
from suites.shared.step import Tensors, excerpt


def drawn(*, batch: int, heads: int, groups: int, tokens: int, features: int, dtype: torch.dtype, seed: int) -> Tensors:
    """Query, key, value and the gradient of the output; ``groups`` query heads share one of the ``heads`` keys."""
    many, few = (batch, heads * groups, tokens, features), (batch, heads, tokens, features)
    shapes = {"query": many, "key": few, "value": few, "grad": many}
    return {
        name: integers(shape, dtype, seed=seed * 4 + index, low=-4, high=4) / 4
        for index, (name, shape) in enumerate(shapes.items())
    }


def fixed(ranks: Ranks, *, dtype: torch.dtype = torch.float64) -> Tensors:
    """Inputs for tests that draw none."""
    degree = ranks.world_size
    return drawn(batch=1, heads=degree, groups=1, tokens=4 * degree, features=4, dtype=dtype, seed=1)


def tokens_of_ranks(tokens: int, degree: int, layout: Layout) -> list[torch.Tensor]:
    """Which tokens each rank should hold, token by token.

    Contiguous: S / R of them. Head and tail (arXiv:2407.21783, section 3.3.2): of 2R equal parts the one that bears the
    rank's number, and the one as far from the end.
    """
    parts = degree if layout == "contiguous" else 2 * degree

    def holder(token: int) -> int:
        part = token * parts // tokens
        return part if part < degree else parts - 1 - part

    return [torch.tensor([token for token in range(tokens) if holder(token) == rank]) for rank in range(degree)]


def attention_reference(*, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool) -> torch.Tensor:
    """The whole sequence's attention from its definition."""
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    return probabilities(query, key, causal) @ value


def probabilities(query: torch.Tensor, key: torch.Tensor, causal: bool) -> torch.Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if causal:
        tokens = query.shape[SEQUENCE]
        scores += torch.full((tokens, tokens), -math.inf, dtype=scores.dtype).triu(1)
    return scores.softmax(-1)


def whole(tensors: Tensors, causal: bool) -> Tensors:
    """Output and gradients of the whole sequence, in float64."""
    double = {name: tensor.double() for name, tensor in tensors.items()}
    grad = double.pop("grad")
    return by_autograd(lambda leaves: attention_reference(**leaves, causal=causal), double, grad)


def assert_attends(
    got: Sequence[Tensors], tensors: Tensors, *, causal: bool, layout: Layout, arithmetic: Arithmetic | None = None
) -> None:
    """Each rank's results are those of its tokens, and of the inputs' dtype.

    Args:
        got: by rank.
        tensors: what ``drawn`` gave.
        causal: whether tokens see only those before them and themselves.
        layout: which tokens the ranks hold.
        arithmetic: what may be rounded; by default as much as kernels round whose keys arrive in a part of each rank.
    """
    degree = len(got)
    held = tokens_of_ranks(tensors["query"].shape[SEQUENCE], degree, layout)
    bound = bounds(tensors, held, arithmetic or in_kernels(degree), causal)
    expected = whole(tensors, causal)
    for rank, (results, mine) in enumerate(zip(got, held, strict=True)):
        assert list(results) == list(expected)
        for name, tensor in results.items():
            assert tensor.dtype == tensors["query"].dtype
            part = (expected[name][:, :, mine], bound[name][:, :, mine])
            assert_within(tensor.double(), *part, f"rank {rank}, {name}")


def one_device(ctx: Context, sizes: racing.Sizes, tokens: int, seed: int, step: int) -> Tensors:
    """What a step that is raced should return, from 1 on: torch's attention of the whole sequence on one device."""
    return _one_device(ctx.device, sizes, tokens, seed, (step - 1) % racing.BATCHES)


@functools.lru_cache(maxsize=racing.BATCHES)  # what each way should return is computed once
def _one_device(device: torch.device, sizes: racing.Sizes, tokens: int, seed: int, batch: int) -> Tensors:
    tensors = racing.drawn(sizes, tokens, seed, device)[batch]
    names = ("query", "key", "value")
    query, key, value = (tensors[name].requires_grad_() for name in names)
    output = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    gradients = torch.autograd.grad(output, (query, key, value), tensors["grad"])
    whole = {"output": output} | {f"{name} gradient": of for name, of in zip(names, gradients, strict=True)}
    rows = racing.rows_of(tokens).to(device)
    return excerpt({name: value[0].index_select(1, rows).transpose(0, 1).flatten(1) for name, value in whole.items()})
