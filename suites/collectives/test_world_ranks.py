"""A root or a peer in a part of the world is named by its rank in the world, or by none; lists hold several objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.collectives.programs.world_ranks import by_default, in_a_pair, objects_in_a_pair, things_of
from suites.shared.comparison import assert_same
from suites.shared.inputs import rank_inputs
from suites.shared.step import Tensors

pytestmark = pytest.mark.ranks(4)

roots = pytest.mark.parametrize("root", [0, 1])


@roots
def test_collectives_and_messages(ranks: Ranks, root: int) -> None:
    xs = rank_inputs(4, shape=(6,), dtype=torch.float64, seed=7)
    expected: list[Tensors] = []
    for rank in range(4):
        pair = [xs[rank % 2], xs[rank % 2 + 2]]
        place, other = rank // 2, xs[(rank + 2) % 4]
        of_rank = {
            "broadcast": pair[root],
            "scatter": pair[root].chunk(2)[place],
            "message": other,
            "batch": -other,
        }
        expected.append(of_rank | ({"reduce": pair[0] + pair[1], "gather": torch.cat(pair)} if place == root else {}))
    assert_same(ranks.run(in_a_pair, xs=xs, root=root), expected)


@roots
def test_several_objects(ranks: Ranks, root: int) -> None:
    for rank, got in enumerate(ranks.run(objects_in_a_pair, root=root)):
        pair, place = [rank % 2, rank % 2 + 2], rank // 2
        of_root = things_of(pair[root])
        expected: dict[str, Any] = {
            "broadcast": of_root,
            "gather": [things_of(each) for each in pair] if place == root else [None, None],
            "scatter": [of_root[place]],
            "message": of_root,
            "batch": of_root,
        }
        if place != root:
            expected |= {"sender of message": pair[root], "sender of batch": pair[root]}
        assert got == expected, f"rank {rank}"


def test_without_a_root(ranks: Ranks) -> None:
    """Rank 0 is the root, and whoever sends is received from."""
    xs = rank_inputs(4, shape=(6,), dtype=torch.float64, seed=8)
    for rank, got in enumerate(ranks.run(by_default, xs=xs)):
        assert got.pop("piece") == [things_of(rank)], f"rank {rank}"
        if rank == 0:
            assert got.pop("objects") == [things_of(each) for each in range(4)]
        expected = {"scatter": xs[0][rank : rank + 1], "ring": xs[rank - 1]}
        if rank == 0:
            expected["gather"] = torch.cat(xs)
        if rank == 3 and any(name.startswith("from") for name in got):
            expected |= {f"from {sender}": xs[sender] for sender in range(3)}
        assert_same([got], [expected], ordered=False)
