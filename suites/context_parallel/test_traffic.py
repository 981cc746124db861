"""What attention over a split sequence sends: by hand the page's formula, message by message, in both directions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Ranks
from suites.context_parallel import programs
from suites.context_parallel.programs import Attention
from suites.context_parallel.reference import drawn
from suites.shared.traffic import Messages, messages_of

pytestmark = pytest.mark.ranks(2, 4)

BATCH, GROUPS, SHARE, FEATURES = 2, 2, 6, 5  # of GROUPS query heads that share a key; SHARE tokens on each rank

DTYPES = {torch.float32: 4, torch.bfloat16: 2}  # bytes of a number


def sent(ranks: Ranks, attention: Attention, dtype: torch.dtype, kv_heads: int) -> list[Messages]:
    degree = ranks.world_size
    tensors = drawn(
        batch=BATCH, heads=kv_heads, groups=GROUPS, tokens=SHARE * degree, features=FEATURES, dtype=dtype, seed=1
    )
    return ranks.run(messages_of, programs.attend, attention=attention, causal=True, layout="head-tail", **tensors)


def hops(degree: int, itemsize: int, kv_heads: int) -> Messages:
    """R - 1 forward with the keys and the values of one rank's tokens, and R - 1 backward with their gradients."""
    return [("send", 2 * BATCH * kv_heads * SHARE * FEATURES * itemsize)] * (2 * (degree - 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
def test_a_hop_sends_the_heads_that_there_are(ranks: Ranks, dtype: torch.dtype) -> None:
    expected = hops(ranks.world_size, DTYPES[dtype], kv_heads=3)
    assert sent(ranks, programs.ring_attention, dtype, kv_heads=3) == [expected] * ranks.world_size


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
def test_ulysses_sends_each_tensor_once_each_way(ranks: Ranks, dtype: torch.dtype) -> None:
    degree = ranks.world_size
    few = BATCH * degree * SHARE * FEATURES * DTYPES[dtype]  # K = R heads of keys, and of values
    # Query, key, value and output; backward the gradient of the output first, and the others in autograd's order.
    forward = [("all_to_all", count * few) for count in (GROUPS, 1, 1, GROUPS)]
    for messages in sent(ranks, programs.ulysses_attention, dtype, kv_heads=degree):
        assert messages[:4] == forward
        assert messages[4] == forward[-1]
        assert sorted(messages[4:]) == sorted(forward)


def repeated_before_the_ring(
    ctx: Context, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any
) -> torch.Tensor:
    """The same results, of G times the bytes: 2."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    return programs.ring_attention(ctx, query, key, value, *args)


def sent_in_float64(
    ctx: Context, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any
) -> torch.Tensor:
    """The same results, of twice the bytes."""
    return programs.ring_attention(ctx, query, key.double(), value.double(), *args).to(query.dtype)


def with_a_gather(
    ctx: Context, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any
) -> torch.Tensor:
    """The same results; and everybody's keys once more, by a collective that nobody expects."""
    dist.all_gather([torch.empty_like(key) for _ in range(ctx.world_size)], key)
    return programs.ring_attention(ctx, query, key, value, *args)


@pytest.mark.deliberate_break
def test_a_collective_that_is_not_expected_is_found(ranks: Ranks) -> None:
    keys = BATCH * 3 * SHARE * FEATURES * 4
    besides = [("c10d.allgather_", (ranks.world_size + 1) * keys)]
    expected = besides + hops(ranks.world_size, 4, kv_heads=3)
    assert sent(ranks, with_a_gather, torch.float32, kv_heads=3) == [expected] * ranks.world_size


@pytest.mark.deliberate_break
@pytest.mark.parametrize("wasteful", [repeated_before_the_ring, sent_in_float64])
def test_a_ring_that_sends_more_is_found(ranks: Ranks, wasteful: Attention) -> None:
    expected = [(name, 2 * nbytes) for name, nbytes in hops(ranks.world_size, 4, kv_heads=3)]
    assert sent(ranks, wasteful, torch.float32, kv_heads=3) == [expected] * ranks.world_size
