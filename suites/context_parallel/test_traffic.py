"""What attention over a split sequence sends: by hand the page's formula, message by message, in both directions."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.context_parallel.programs import attention as programs
from suites.context_parallel.programs.attention import Attention
from suites.context_parallel.reference import drawn
from suites.shared.traffic import Messages, messages_of

pytestmark = pytest.mark.ranks(2, 4)

BATCH, GROUPS, SHARE, FEATURES = 2, 2, 6, 5  # of GROUPS query heads that share a key; SHARE tokens on each rank

DTYPES = {torch.float32: 4, torch.bfloat16: 2}  # bytes of a number


def sent(
    ranks: Ranks, attention: Attention, dtype: torch.dtype, kv_heads: int, *, causal: bool = True
) -> list[Messages]:
    degree = ranks.world_size
    tensors = drawn(
        batch=BATCH, heads=kv_heads, groups=GROUPS, tokens=SHARE * degree, features=FEATURES, dtype=dtype, seed=1
    )
    return ranks.run(messages_of, programs.attend, attention=attention, causal=causal, layout="head-tail", **tensors)


def hops(degree: int, itemsize: int, kv_heads: int) -> Messages:
    """R - 1 forward with the keys and the values of one rank's tokens, and R - 1 backward with their gradients."""
    return [("send", 2 * BATCH * kv_heads * SHARE * FEATURES * itemsize)] * (2 * (degree - 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
def test_a_hop_sends_the_heads_that_there_are(ranks: Ranks, dtype: torch.dtype) -> None:
    expected = hops(ranks.world_size, DTYPES[dtype], kv_heads=3)
    assert sent(ranks, programs.ring_attention, dtype, kv_heads=3) == [expected] * ranks.world_size


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
def test_an_all_gather_takes_the_heads_that_there_are(ranks: Ranks, dtype: torch.dtype) -> None:
    """Keys and values once, and backward their gradients, of the whole sequence."""
    own = BATCH * 3 * SHARE * FEATURES * DTYPES[dtype]
    expected = [("all_gather", own)] * 2 + [("reduce_scatter", own * ranks.world_size)] * 2
    attention = programs.all_gather_attention("head-tail")
    # Without a mask, whose class of tensors cannot be made while calls are recorded.
    assert sent(ranks, attention, dtype, kv_heads=3, causal=False) == [expected] * ranks.world_size


@pytest.mark.parametrize("attention", [programs.ulysses_attention, programs.ordered_ulysses_attention])
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
def test_ulysses_sends_each_tensor_once_each_way(ranks: Ranks, attention: Attention, dtype: torch.dtype) -> None:
    degree = ranks.world_size
    few = BATCH * degree * SHARE * FEATURES * DTYPES[dtype]  # K = R heads of keys, and of values
    # Query, key, value and output; backward the gradient of the output first, and the others in autograd's order.
    forward = [("all_to_all", count * few) for count in (GROUPS, 1, 1, GROUPS)]
    for messages in sent(ranks, attention, dtype, kv_heads=degree):
        assert messages[:4] == forward
        assert messages[4] == forward[-1]
        assert sorted(messages[4:]) == sorted(forward)
