"""A root or a peer is named by its place in the group, not in the world; of four ranks two groups work at once."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.collectives.programs.rooted import in_group, messages, objects, unsorted
from suites.shared.comparison import assert_same
from suites.shared.inputs import rank_inputs
from suites.shared.step import Tensors
from suites.shared.strategies import seeds

pytestmark = pytest.mark.ranks(4)

roots = pytest.mark.parametrize("root", [0, 1])


def inputs(numel: int, seed: int) -> list[torch.Tensor]:
    return rank_inputs(4, shape=(2 * numel,), dtype=torch.float64, seed=seed)


@pytest.mark.examples(0.2)
@given(numel=st.integers(1, 9), root=st.integers(0, 1), asynchronous=st.booleans(), seed=seeds)
@example(numel=3, root=1, asynchronous=True, seed=1)
@example(numel=3, root=1, asynchronous=False, seed=1)
def test_collectives(ranks: Ranks, numel: int, root: int, asynchronous: bool, seed: int) -> None:
    xs = inputs(numel, seed)
    got = ranks.run(in_group, xs=xs, root=root, asynchronous=asynchronous)
    expected: list[Tensors] = []
    for rank in range(4):
        place, pair = rank % 2, xs[rank // 2 * 2 : rank // 2 * 2 + 2]
        summed = pair[0] + pair[1]
        of_rank = {
            "broadcast": pair[root],
            "scatter": pair[root].chunk(2)[place],
            "all_gather": torch.cat(pair),
            "reduce_scatter": summed.chunk(2)[place],
            "least": torch.minimum(*pair).chunk(2)[place].expand(2, -1),
            "largest": torch.cat([torch.maximum(*pair), -torch.minimum(*pair)]),
        }
        if "all_to_all" in got[rank]:
            of_rank["all_to_all"] = torch.cat([x.chunk(2)[place] for x in pair])
        if place == root:
            of_rank |= {"reduce": summed, "greatest": torch.maximum(*pair), "gather": torch.cat(pair)}
        expected.append(of_rank)
    assert_same(got, expected)


@pytest.mark.examples(0.1)
@given(numel=st.integers(1, 9), asynchronous=st.booleans(), seed=seeds)
@example(numel=3, asynchronous=True, seed=1)
@example(numel=3, asynchronous=False, seed=1)
def test_messages_of_two_tags(ranks: Ranks, numel: int, asynchronous: bool, seed: int) -> None:
    xs = inputs(numel, seed)
    expected = [
        {
            f"{name}{how}": times * xs[rank ^ 1]
            for how in ("", " of a batch")
            for times, name in ((1, "once"), (2, "twice"))
        }
        for rank in range(4)
    ]
    assert_same(ranks.run(messages, xs=xs, asynchronous=asynchronous), expected)


@roots
def test_objects(ranks: Ranks, root: int) -> None:
    for rank, got in enumerate(ranks.run(objects, root=root)):
        first = rank // 2 * 2
        pair = [["rank" * (each + 1), each] for each in (first, first + 1)]
        of_root = pair[root]
        expected = {
            "broadcast": [of_root],
            "all_gather": pair,
            "gather": pair if rank == first + root else [None, None],
            "scatter": [[of_root, rank - first]],
            "message": [of_root],
        }
        for name, value in expected.items():
            assert got[name] == value, f"rank {rank}, {name}: {got[name]}, not {value}"


@pytest.mark.skipif(
    "sort_ranks" not in inspect.signature(dist.new_group).parameters,
    reason=f"torch {torch.__version__} sorts the ranks of a group",
)
@pytest.mark.examples(0.1)
@given(numel=st.integers(1, 9), seed=seeds)
def test_ranks_in_another_order(ranks: Ranks, numel: int, seed: int) -> None:
    """The first rank of the group is the one that was named first."""
    xs = inputs(numel, seed)
    expected = [
        {
            "broadcast": xs[rank % 2 + 2],
            "all_gather": torch.cat([xs[rank % 2 + 2], xs[rank % 2]]),
            "place": torch.tensor(0 if rank >= 2 else 1),
            "object": torch.tensor([rank % 2 + 2]),
            "subgroup": torch.tensor([rank % 2, rank % 2 + 2]),
        }
        for rank in range(4)
    ]
    assert_same(ranks.run(unsorted, xs=xs), expected)
