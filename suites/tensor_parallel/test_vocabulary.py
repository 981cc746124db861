"""Embedding and loss split over ranks by vocabulary are those of the whole, and so are all gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.shared.comparison import Results, assert_close, assert_same
from suites.shared.inputs import integers
from suites.shared.sharding import per_rank
from suites.shared.step import Step, Tensors, each_step
from suites.shared.strategies import seeds
from suites.shared.traffic import Traffic
from suites.tensor_parallel.programs import vocabulary as programs
from suites.tensor_parallel.reference import DTYPE

pytestmark = pytest.mark.ranks(2, 4)

EMBEDDED = 4  # width of the vocabulary's embedding

VOCABULARY = {"embedding.weight gradient": 0, "head.weight gradient": 0}


TokenStep = tuple[torch.Tensor, torch.Tensor, Tensors]
"""Tokens, targets and parameters of one step."""


def batch(*, vocabulary: int, tokens: int, seed: int) -> TokenStep:
    """Tokens, and targets of which some don't count; weights are quarters between -1 and 1: logits are exact."""
    size = (vocabulary, EMBEDDED)
    target = integers((tokens,), torch.int64, seed=seed * 4, low=-2, high=vocabulary - 1)
    target[0] = target[0].clamp(min=0)  # the mean of none would be 0 / 0
    parameters = {
        f"{name}.weight": integers(size, DTYPE, seed=seed * 4 + 2 + index, low=-4, high=4) / 4
        for index, name in enumerate(("embedding", "head"))
    }
    looked_up = integers((tokens,), torch.int64, seed=seed * 4 + 1, low=0, high=vocabulary - 1)
    return looked_up, torch.where(target < 0, -100, target), parameters


def batches(steps: int, *, vocabulary: int, tokens: int, seed: int) -> list[TokenStep]:
    """Batches of steps that differ in tokens, targets and weights, and in how many targets count."""
    drawn = [batch(vocabulary=vocabulary, tokens=tokens, seed=seed + number) for number in range(steps)]
    for number, (_, target, _) in enumerate(drawn):
        target[1 : 1 + number] = -100
    return drawn


def whole_vocabulary(drawn: TokenStep, reduction: str) -> Tensors:
    """Embedding, loss and gradients from their definitions; no module, no ``cross_entropy``."""
    tokens, target, parameters = drawn
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    one_hot = functional.one_hot(tokens, len(parameters["embedding.weight"])).to(DTYPE)
    embedded = one_hot @ leaves["embedding.weight"]
    logits = embedded @ leaves["head.weight"].T
    counts = target >= 0
    own = logits.gather(1, target.clamp(min=0)[:, None])[:, 0]
    losses = (logits.exp().sum(1).log() - own) * counts
    loss = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / counts.sum()}[reduction]
    gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
    names = [f"{name} gradient" for name in leaves]
    return {"embedded": embedded.detach(), "loss": loss.detach(), **dict(zip(names, gradients, strict=True))}


def vocabulary_tolerance(vocabulary: int, tokens: int) -> float:
    """How far rounding may take loss and gradients.

    Logits are exact, and at most W. An exp is off by 4 u of itself, and a sum of V of them by V u more; the logarithm
    makes of this an absolute error, and is itself, like a loss, at most 2 W + log V. N losses add up to N times that. A
    softmax takes the errors of exp and sum, and rows' gradients add V, W or N products of at most 1, for at most N
    tokens. Twice, since the reference rounds too.
    """
    largest = 2 * EMBEDDED + math.log(vocabulary)
    return 2 * tokens * (2 * (vocabulary + 8) + (tokens + 3) * largest + vocabulary + EMBEDDED + tokens) * 2**-53


def assert_same_vocabulary(got: Results, reduction: str, drawn: TokenStep) -> None:
    """Embeddings are rows of the table, exactly; loss and gradients are near."""
    whole = per_rank(whole_vocabulary(drawn, reduction), len(got), VOCABULARY)
    tokens, _, parameters = drawn
    for rank, (have, want) in enumerate(zip(got, whole, strict=True)):
        assert_close(have["embedded"], want["embedded"], f"rank {rank}, embedded")
    assert_same(got, whole, vocabulary_tolerance(len(parameters["head.weight"]), len(tokens)))


def check_vocabulary(ranks: Ranks, reduction: str, steps: list[TokenStep]) -> None:
    """Each step gives what one device does with its own tokens, targets and weights."""
    results = ranks.run(each_step, programs.vocabulary_parallel, len(steps), reduction=reduction, batches=steps)
    for drawn, got in zip(steps, zip(*results, strict=True), strict=True):
        assert_same_vocabulary(got, reduction, drawn)


@pytest.mark.ranks(2)
@given(
    vocabulary=st.sampled_from([5, 6]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    seed=seeds,
)
def test_vocabulary(ranks: Ranks, vocabulary: int, reduction: str, seed: int) -> None:
    check_vocabulary(ranks, reduction, batches(2, vocabulary=vocabulary, tokens=7, seed=seed))


@pytest.mark.ranks(3, 4)
def test_vocabulary_on_more_ranks(ranks: Ranks) -> None:
    check_vocabulary(ranks, "mean", batches(2, vocabulary=11, tokens=20, seed=1))


def test_an_embedding_of_which_each_rank_keeps_a_part(ranks: Ranks) -> None:
    """Each rank keeps its part of the sequence, as sequence parallelism has it, or of the features."""
    degree = ranks.world_size
    tokens = integers((3, 2 * degree), torch.int64, seed=1, low=0, high=2 * degree - 1)
    weight = integers((2 * degree, degree), DTYPE, seed=2)
    grad = integers((3, 2 * degree, degree), DTYPE, seed=3)
    one_hot = functional.one_hot(tokens, 2 * degree).to(DTYPE)
    gradient = torch.einsum("bsv,bsw->vw", one_hot, grad)
    for dim in (1, 2):
        parts = (one_hot @ weight).chunk(degree, dim)
        expected = [
            {"embedded": part, "weight gradient": rows}
            for part, rows in zip(parts, gradient.chunk(degree), strict=True)
        ]
        got = ranks.run(programs.cut_embedding, tokens=tokens, weight=weight, grad=grad, dim=dim)
        assert_same(got, expected)


def most_sent_at_once(ctx: Context, program: Callable[..., Step[Tensors]], **kwargs: Any) -> tuple[Tensors, int]:
    """What a step returns, and the bytes of the largest tensor that it gives to a collective, or gets of one."""
    step = program(ctx, **kwargs)
    with Traffic() as traffic:
        results = step()
    return results, max(call.size for call in traffic.calls)


def test_no_rank_has_all_logits(ranks: Ranks) -> None:
    """The largest tensor is what was looked up, N x W, or its gradient; the logits would be N x V."""
    drawn = batch(vocabulary=64, tokens=6, seed=1)
    results = ranks.run(most_sent_at_once, programs.vocabulary_parallel, reduction="mean", batches=[drawn])
    assert_same_vocabulary([result for result, _ in results], "mean", drawn)
    expected = 6 * EMBEDDED * DTYPE.itemsize
    for rank, (_, nbytes) in enumerate(results):
        assert nbytes == expected, f"rank {rank} sends {nbytes} bytes at once, not {expected} at most"
