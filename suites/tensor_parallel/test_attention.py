"""Attention split over ranks by heads computes what the whole does: output and all gradients, but for rounding."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from pytest_gpuperf import Ranks
from suites.shared.inputs import Given, integers
from suites.shared.step import Tensors, each_step, once
from suites.shared.strategies import seeds
from suites.tensor_parallel.programs import attention as programs
from suites.tensor_parallel.reference import DTYPE, assert_steps

BATCHES, TOKENS, MODEL, HEAD = 2, 3, 8, 2  # of attention: batch, sequence, width, features of a head

ATTENTION = {f"{name}.weight gradient": 0 for name in "qkv"} | {"o.weight gradient": 1}


def attention_inputs(*, heads: int, kv_heads: int, seed: int) -> Given:
    """Quarters between -1 and 1; weights so small that no row and no column of them sums up to more than 1."""
    width = heads * HEAD
    sizes = {"q": (width, MODEL), "k": (kv_heads * HEAD, MODEL), "v": (kv_heads * HEAD, MODEL), "o": (MODEL, width)}
    weights = {
        f"{name}.weight": integers(size, DTYPE, seed=seed * 8 + index, low=-4, high=4) / (4 * max(MODEL, width))
        for index, (name, size) in enumerate(sizes.items())
    }
    x, grad = (integers((BATCHES, TOKENS, MODEL), DTYPE, seed=seed * 8 + index, low=-4, high=4) / 4 for index in (4, 5))
    return Given(weights, x, grad)


def whole_attention(leaves: Tensors, *, causal: bool) -> torch.Tensor:
    """From its definition, head by head."""
    query, key, value = (functional.linear(leaves["input"], leaves[f"{name}.weight"]).split(HEAD, -1) for name in "qkv")
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril() if causal else torch.ones(1, 1, dtype=torch.bool)
    heads = []
    for index, queries in enumerate(query):
        shared = index * len(key) // len(query)
        scores = (queries @ key[shared].mT / math.sqrt(HEAD)).masked_fill(~mask, -math.inf)
        heads.append(scores.softmax(-1) @ value[shared])
    return functional.linear(torch.cat(heads, -1), leaves["o.weight"])


def attention_tolerance(heads: int, kv_heads: int) -> float:
    """How far rounding may take any result of attention.

    Queries, keys, values and the heads' output gradients are exact: quarters, and powers of two smaller. A computed
    sum of n products is off by at most n * u of the sum of their magnitudes, u = 2**-53 (Higham, Accuracy and Stability
    of Numerical Algorithms, section 3.1). To first order, with D features and S tokens:

    - A score is at most sqrt(D), and off by (D + 2) sqrt(D) u; its distance from the largest score by another
      2 sqrt(D) u, exp by 4 u. Normalizer and weighted sum add S terms each, and are divided.
    - Gradients of scores, at most 2 D times a probability, take the errors of probabilities and output, and add D
      products. Those of queries, at most 2 sqrt(D), add S of them; those of keys and values G S, for the G heads that
      share one, and grow as much larger.
    - The input's gradient adds three of these, a weight's those of all B S tokens.

    Twice, since the reference rounds too.
    """
    root, groups, rows = math.sqrt(HEAD), heads // kv_heads, BATCHES * TOKENS
    forward = 2 * ((HEAD + 4) * root + 4 + TOKENS) + 1
    roundings = 2 * forward + HEAD + groups * TOKENS + rows + heads * HEAD
    largest = 3 * rows * groups * TOKENS * 2 * root
    return 2 * roundings * largest * 2**-53


def check_attention(world: Ranks, *, heads: int, kv_heads: int, causal: bool, seed: int) -> None:
    given = [attention_inputs(heads=heads, kv_heads=kv_heads, seed=seed + step) for step in range(2)]
    got = world.run(
        each_step,
        programs.attention,
        len(given),
        given=given,
        head_dim=HEAD,
        causal=causal,
        share_kv_heads=kv_heads < world.world_size,
    )
    whole = functools.partial(whole_attention, causal=causal)
    assert_steps(got, given, whole, ATTENTION, attention_tolerance(heads, kv_heads))


@pytest.mark.ranks(2)
@given(heads=st.sampled_from([2, 4]), groups=st.sampled_from([1, 2]), causal=st.booleans(), seed=seeds)
def test_attention(ranks: Ranks, heads: int, groups: int, causal: bool, seed: int) -> None:
    check_attention(ranks, heads=heads, kv_heads=heads // groups, causal=causal, seed=seed)


@pytest.mark.ranks(2)
def test_several_shared_heads_on_a_rank(ranks: Ranks) -> None:
    """Two key heads, each of two query heads: the order in which they are repeated matters."""
    check_attention(ranks, heads=8, kv_heads=4, causal=True, seed=1)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 4), (4, 2), (8, 1), (16, 8)])
def test_attention_on_four_ranks(ranks: Ranks, heads: int, kv_heads: int) -> None:
    check_attention(ranks, heads=heads, kv_heads=kv_heads, causal=True, seed=1)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "share", "message"),
    [
        (3, 3, False, "3 query heads"),
        (4, 1, False, "1 key and value heads"),
        (12, 3, True, "3 key and value heads"),
    ],
    ids=["query heads", "fewer key heads than ranks", "key heads that do not divide ranks"],
)
@pytest.mark.ranks(4)
def test_heads_that_do_not_divide_are_refused(
    ranks: Ranks, heads: int, kv_heads: int, share: bool, message: str
) -> None:
    given = [attention_inputs(heads=heads, kv_heads=kv_heads, seed=1)]
    with pytest.raises(ValueError, match=f"^{message} cannot be split over 4 ranks: .*share_kv_heads=True"):
        ranks.run(once, programs.attention, share_kv_heads=share, head_dim=HEAD, causal=True, given=given)
