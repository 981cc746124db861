"""Attention over a split sequence computes what attention over the whole one does: output and all gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.context_parallel.bounds import Arithmetic, by_hand, in_kernels
from suites.context_parallel.programs import attention as programs
from suites.context_parallel.programs.attention import SEQUENCE, Attention, Layout, Positions, positions
from suites.context_parallel.programs.buffers import cut_and_joined, one_after_another
from suites.context_parallel.reference import assert_attends, drawn, fixed, tokens_of_ranks
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.late_messages import late_messages
from suites.shared.step import Tensors, each_step, once
from suites.shared.strategies import seeds, worlds

pytestmark = pytest.mark.ranks(2, 4)

LAYOUTS: tuple[Layout, ...] = ("contiguous", "head-tail")
layouts: st.SearchStrategy[Layout] = st.sampled_from(LAYOUTS)
attention_dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def arithmetic_of(attention: Attention, degree: int) -> Arithmetic:
    """Returns the arithmetic of the ring, or of Ulysses, whose kernels have all keys at once."""
    return by_hand(degree) if attention is programs.ring_attention else in_kernels(1)


@given(
    data=st.data(),
    attention=st.sampled_from([programs.ring_attention, programs.ulysses_attention]),
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    groups=st.integers(1, 2),
    parts=st.integers(1, 3),
    features=st.integers(1, 5),
    causal=st.booleans(),
    layout=layouts,
    dtype=attention_dtypes,
    seed=seeds,
)
def test_attention(
    ranks: Ranks,
    data: st.DataObject,
    attention: Attention,
    batch: int,
    heads: int,
    groups: int,
    parts: int,
    features: int,
    causal: bool,
    layout: Layout,
    dtype: torch.dtype,
    seed: int,
) -> None:
    world = data.draw(worlds(ranks))
    degree = world.world_size
    first, second = (
        drawn(
            batch=batch,
            heads=heads * degree if attention is programs.ulysses_attention else heads,
            groups=groups,
            tokens=2 * degree * parts,
            features=features,
            dtype=dtype,
            seed=seed + step,
        )
        for step in range(2)
    )
    got = world.run(
        each_step, programs.attend, 2, attention=attention, causal=causal, layout=layout, **first, later=[second]
    )
    arithmetic = arithmetic_of(attention, degree)
    for step, tensors in enumerate((first, second)):
        of_step = [of_rank[step] for of_rank in got]
        assert_attends(of_step, tensors, causal=causal, layout=layout, arithmetic=arithmetic)


@pytest.mark.parametrize("attention", [programs.ring_attention, programs.ulysses_attention])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
def test_scores_in_the_thousands(ranks: Ranks, attention: Attention, dtype: torch.dtype, causal: bool) -> None:
    """Exp of them is infinite in every dtype, exp of their negatives 0: only a distance from the largest one is not.

    The last feature of queries and keys is 64 and about 64: scores are 2048 and, for every other query, -2048. Both
    differ by up to 24 between keys, so that the largest one changes from part to part, and rows have probabilities
    that are neither 0 nor 1. Products are multiples of 1/16 below 2**13: float32 holds them.
    """
    tensors = fixed(ranks, dtype=dtype)
    tensors["query"][..., -1] = 64.0
    tensors["query"][:, :, 1::2, -1] = -64.0
    tensors["key"][..., -1] = 64 + tensors["key"][..., -1] * 3 / 8
    layout: Layout = "head-tail"
    got = ranks.run(once, programs.attend, attention=attention, causal=causal, layout=layout, **tensors)
    arithmetic = arithmetic_of(attention, ranks.world_size)
    assert_attends(got, tensors, causal=causal, layout=layout, arithmetic=arithmetic)


@pytest.mark.parametrize("attention", [programs.ring_attention, programs.ulysses_attention])
def test_scores_that_are_thousands_apart(ranks: Ranks, attention: Attention) -> None:
    """The first half's keys have scores of -2048, or of 2048 for every other query, and the second half's the opposite.

    Exp of the distance between parts is infinite, and of its negative 0: each part needs the largest score so far.
    """
    tensors = fixed(ranks)
    half = tensors["key"].shape[SEQUENCE] // 2
    tensors["query"][..., -1] = 64.0
    tensors["query"][:, :, 1::2, -1] = -64.0
    tensors["key"][..., -1] = 64.0
    tensors["key"][:, :, :half, -1] = -64.0
    got = ranks.run(once, programs.attend, attention=attention, causal=False, layout="contiguous", **tensors)
    arithmetic = arithmetic_of(attention, ranks.world_size)
    assert_attends(got, tensors, causal=False, layout="contiguous", arithmetic=arithmetic)


def with_late_messages(ctx: Context, **given: Any) -> Tensors:
    """A step of the ring whose messages arrive as late as they may."""
    with late_messages():
        return once(ctx, programs.attend, attention=programs.ring_attention, causal=True, **given)


@pytest.mark.ranks(2, 4, device="cpu")
def test_every_hop_of_the_ring_is_waited_for(ranks: Ranks) -> None:
    tensors = fixed(ranks)
    got = ranks.run(with_late_messages, layout="head-tail", **tensors)
    assert_attends(got, tensors, causal=True, layout="head-tail", arithmetic=by_hand(ranks.world_size))


def gathered_attention(
    ctx: Context, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, positions: Positions, causal: bool
) -> torch.Tensor:
    """Someone's own: all keys and values are gathered first (The Llama 3 Herd of Models, section 3.3.2)."""
    mesh = ctx.mesh((ctx.world_size,))
    key, value = (
        DTensor.from_local(tensor, mesh, [Shard(SEQUENCE)])
        .redistribute(placements=[Replicate()])
        .to_local(grad_placements=[Partial()])  # each rank's queries give a share of the gradient
        for tensor in (key, value)
    )
    mask = positions[ctx.rank][:, None] >= torch.cat(list(positions)) if causal else None
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_your_own_attention(ranks: Ranks, layout: Layout) -> None:
    tensors = fixed(ranks)
    got = ranks.run(once, programs.attend, attention=gathered_attention, causal=True, layout=layout, **tensors)
    assert_attends(got, tensors, causal=True, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_buffers_that_torch_cuts(ranks: Ranks, layout: Layout) -> None:
    """Buffers are two sequences of a batch, and a tensor whose first dimension is the sequence."""
    length = 4 * ranks.world_size
    tokens = integers((2, length, 3), torch.float64, seed=1)
    places = integers((length, 2), torch.float64, seed=2)
    got = ranks.run(cut_and_joined, tokens=tokens, places=places, layout=layout)
    expected = [
        {
            "tokens": tokens[:, held],
            "tokens afterwards": tokens,
            "places": places[held],
            "tokens together": tokens,
        }
        | ({"turned tokens together": tokens} if "turned tokens together" in of_rank else {})
        for of_rank, held in zip(got, tokens_of_ranks(length, ranks.world_size, layout), strict=True)
    ]
    assert_same(got, expected)


@pytest.mark.skipif(
    torch.__version__ < "2.13",  # compared as a version
    reason=f"torch {torch.__version__} refuses a sequence that it cannot balance: 2.13 is needed",
)
def test_a_sequence_is_balanced_after_one_that_cannot_be(ranks: Ranks) -> None:
    lengths = [3 * ranks.world_size, 4 * ranks.world_size]
    parts = [tokens_of_ranks(length, ranks.world_size, layout) for length, layout in zip(lengths, LAYOUTS, strict=True)]
    got = ranks.run(one_after_another, lengths=lengths)
    assert got == [[held.tolist() for held in of_rank] for of_rank in zip(*parts, strict=True)]


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_gather_attention(ranks: Ranks, layout: Layout, causal: bool) -> None:
    tensors = drawn(batch=2, heads=2, groups=2, tokens=6 * ranks.world_size, features=4, dtype=torch.float64, seed=1)
    attention = programs.all_gather_attention(layout)
    got = ranks.run(once, programs.attend, attention=attention, causal=causal, layout=layout, **tensors)
    assert_attends(got, tensors, causal=causal, layout=layout)


def work(held: torch.Tensor) -> int:
    """How many keys a rank's causal queries see."""
    return int((held + 1).sum())


def test_head_tail_gives_all_ranks_the_same_work(ranks: Ranks) -> None:
    degree = ranks.world_size
    tokens = 8 * degree
    for layout in LAYOUTS:
        for held, expected in zip(
            positions(tokens, degree, layout), tokens_of_ranks(tokens, degree, layout), strict=True
        ):
            assert torch.equal(held, expected)
    shares = [work(held) for held in positions(tokens, degree, "head-tail")]
    assert shares == [tokens * (tokens + 1) // 2 // degree] * degree
    contiguous = [work(held) for held in positions(tokens, degree, "contiguous")]
    assert contiguous[-1] == contiguous[0] + 64 * (degree - 1)  # 8 queries with 8 (R - 1) keys more


@pytest.mark.parametrize(("layout", "parts"), [("contiguous", 1), ("head-tail", 2)])
def test_a_sequence_that_does_not_divide_is_refused(ranks: Ranks, layout: Layout, parts: int) -> None:
    tokens = 3 * parts * ranks.world_size - 1
    tensors = drawn(batch=1, heads=1, groups=1, tokens=tokens, features=2, dtype=torch.float64, seed=1)
    message = f"a sequence of {tokens} tokens cannot be split over {ranks.world_size} ranks in the {layout} layout"
    with pytest.raises(ValueError, match=f"^{message}.*multiple of {parts * ranks.world_size}\\b"):
        ranks.run(once, programs.attend, attention=programs.ring_attention, causal=True, layout=layout, **tensors)


@pytest.mark.parametrize(("heads", "groups", "which"), [(1, 1, "query"), (1, 4, "key and value")])
def test_heads_that_do_not_divide_are_refused(ranks: Ranks, heads: int, groups: int, which: str) -> None:
    tensors = drawn(
        batch=1, heads=heads, groups=groups, tokens=2 * ranks.world_size, features=2, dtype=torch.float64, seed=1
    )
    with pytest.raises(ValueError, match=f"^1 {which} heads cannot be split over {ranks.world_size} ranks: "):
        ranks.run(
            once, programs.attend, attention=programs.ulysses_attention, causal=True, layout="contiguous", **tensors
        )


@pytest.mark.ranks(2, 4, device="cuda")
@pytest.mark.parametrize("rotation", ["allgather", "alltoall"])
@pytest.mark.parametrize(
    ("causal", "layout"), [(False, "contiguous"), (True, "contiguous"), (True, "head-tail")], ids=str
)
@pytest.mark.parametrize(("kernel", "dtype"), [("efficient", torch.float32), ("flash", torch.bfloat16)], ids=str)
def test_torch_ring_attention(
    ranks: Ranks, rotation: str, causal: bool, layout: Layout, kernel: str, dtype: torch.dtype
) -> None:
    # The efficient kernel pads its normalizers to multiples of 32 tokens, the head-tail layout halves a rank's.
    tensors = drawn(batch=2, heads=4, groups=1, tokens=64 * ranks.world_size, features=16, dtype=dtype, seed=1)
    program = programs.torch_ring_attention
    got = ranks.run(once, program, rotation=rotation, kernel=kernel, causal=causal, layout=layout, **tensors)
    assert_attends(got, tensors, causal=causal, layout=layout)
