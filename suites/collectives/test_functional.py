"""Functional collectives along each dimension, coalesced and with gradients, against what one process computes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.collectives.programs.functional import Asked, all_forms, splits
from suites.shared.comparison import assert_same
from suites.shared.inputs import rank_inputs
from suites.shared.step import Tensors
from suites.shared.strategies import seeds

REDUCED = {
    "sum": lambda stacked: stacked.sum(0),
    "max": lambda stacked: stacked.amax(0),
    "min": lambda stacked: stacked.amin(0),
    "product": lambda stacked: stacked.prod(0),
    "avg": lambda stacked: stacked.sum(0) / len(stacked),
}


@st.composite
def drawn(draw: st.DrawFn, /, world_size: int, inner: int) -> Asked:
    """Tensors of one to three dimensions; splits between ranks are uneven, and some are of no rows."""
    shape = tuple(inner * draw(st.integers(1, 3)) for _ in range(draw(st.integers(1, 3))))
    rows = torch.Size(shape).numel() // inner
    row = st.lists(st.integers(0, rows), min_size=inner, max_size=inner)
    sends = draw(st.lists(row, min_size=inner, max_size=inner))
    return Asked(
        xs=rank_inputs(world_size, shape=shape, dtype=torch.float64, seed=draw(seeds)),
        op=draw(st.sampled_from(sorted(REDUCED))),
        dim=draw(st.integers(-len(shape), len(shape) - 1)),
        sends=sends,
        inner=inner,
    )


@pytest.mark.ranks(3)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("older", [False, True], ids=["names of today", "older names"])
def test_along_each_dimension(ranks: Ranks, dim: int, older: bool) -> None:
    """The tensors have three dimensions of different sizes, each a multiple of the group's size."""
    xs = rank_inputs(3, shape=(6, 3, 9), dtype=torch.float64, seed=1)
    assert_all(ranks, Asked(xs=xs, op="sum", dim=dim, sends=[[1, 0, 2], [0, 5, 3], [4, 2, 0]], inner=3), older)


@pytest.mark.ranks(4)
@pytest.mark.examples(0.4)
@given(data=st.data(), older=st.booleans())
def test_in_groups_of_two(ranks: Ranks, data: st.DataObject, older: bool) -> None:
    assert_all(ranks, data.draw(drawn(4, inner=2)), older)


@pytest.mark.ranks(3)
@pytest.mark.examples(0.4)
@given(data=st.data(), older=st.booleans())
def test_in_a_group_of_all(ranks: Ranks, data: st.DataObject, older: bool) -> None:
    assert_all(ranks, data.draw(drawn(3, inner=3)), older)


def assert_all(ranks: Ranks, asked: Asked, older: bool) -> None:
    assert_same(
        ranks.run(all_forms, asked=asked, older=older), [expected(asked, rank) for rank in range(len(asked.xs))]
    )


def expected(asked: Asked, rank: int) -> Tensors:
    """What a rank should have."""
    place, first = rank % asked.inner, rank - rank % asked.inner
    xs = list(asked.xs[first : first + asked.inner])
    reduced = REDUCED[asked.op](torch.stack(xs))
    share = reduced.chunk(asked.inner, asked.dim)[place]
    summed = torch.stack(xs).sum(0)
    results = {
        "broadcast": xs[0],
        "broadcast of the last": xs[-1],
        "all_reduce": reduced,
        "all_gather": torch.cat(xs, asked.dim),
        "reduce_scatter": share,
        "all_to_all": torch.cat([sent_to(asked, xs, peer, place) for peer in range(asked.inner)]),
        "all_to_all of equal parts": torch.cat([x.chunk(asked.inner)[place] for x in xs]),
        "permute": xs[place - 1].flatten(),
    }
    scales = [1, 2**asked.inner if asked.op == "product" else 2]
    results |= {f"all_reduce, {number} of two": scale * reduced for number, scale in enumerate(scales)}
    results |= {f"all_gather, {number} of two": (1 + number) * torch.cat(xs) for number in range(2)}
    results |= {f"reduce_scatter, {number} of two": scale * share for number, scale in enumerate(scales)}
    # Each rank's output gradient is the whole, so that a rank's own part comes back once for each rank.
    results["all_gather, gradient"] = asked.inner * xs[place]
    results["reduce_scatter, gradient"] = summed
    sent = sum(asked.sends[place])
    results["all_to_all, gradient"] = torch.cat(
        [xs[place].flatten()[:sent], xs[place].new_zeros(xs[place].numel() - sent)]
    )
    results["all_to_all, gradient"] = results["all_to_all, gradient"].view(xs[place].shape)
    return {**results, "input afterwards": xs[place]}


def sent_to(asked: Asked, xs: list[torch.Tensor], sender: int, receiver: int) -> torch.Tensor:
    """The rows that one rank of a group sends to another one."""
    sends, _ = splits(asked, sender)
    begin = sum(sends[:receiver])
    return xs[sender].flatten()[begin : begin + sends[receiver]]
