"""Many small all_reduces give the same sums however they are issued, step after step."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.collectives.programs import coalescing
from suites.collectives.programs.coalescing import in_part_of_the_world, wrong_parts
from suites.collectives.reference import Collective, NeverRight
from suites.shared.comparison import assert_same
from suites.shared.inputs import rank_inputs
from suites.shared.step import Tensors
from suites.shared.traffic import messages_of

# Tensors, elements of all of them together, dtype, and operation. The last tensor is smaller than the others.
CASES = (
    (1, 5, torch.int64, "sum"),
    (7, 52, torch.bfloat16, "max"),
    (33, 1999, torch.int32, "min"),
    (40, 70_001, torch.float32, "sum"),
)


def check(ranks: Ranks, way: str) -> None:
    """Runs two steps of each case, and says what is wrong on any rank."""
    members = tuple(range(ranks.world_size))
    for count, numel, dtype, op in CASES:
        case = Collective(name="all_reduce", numel=numel, dtype=dtype, seed=count, members=members, op=op)
        told = ranks.run(wrong_parts, way=way, collective=case, count=count)
        assert not any(told), "\n".join(text for of_rank in told for text in of_rank)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("way", ["one_by_one", "coalesced", "flat"])
def test_many_small(ranks: Ranks, way: str) -> None:
    check(ranks, way)


@pytest.mark.ranks(2)
def test_what_is_wrong_is_reported_of_each_step(ranks: Ranks) -> None:
    case = NeverRight(name="all_reduce", numel=2, dtype=torch.float32, seed=1, members=(0, 1))
    told = ranks.run(wrong_parts, way="flat", collective=case, count=2)
    assert told == [["flat, step 1: not right", "flat, step 2: not right"]] * ranks.world_size


CALLS = {"one_by_one": 7, "coalesced": 1, "flat": 1}
"""The number of calls of torch.distributed that each way makes for 7 tensors."""


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", CALLS)
def test_so_many_calls_are_made(ranks: Ranks, way: str) -> None:
    """A way that falls back to a call for each tensor gives the same sums."""
    case = Collective(name="all_reduce", numel=7 * 5, dtype=torch.float32, seed=1, members=(0, 1))
    for rank, messages in enumerate(ranks.run(messages_of, getattr(coalescing, way), collective=case, count=7)):
        assert len(messages) == CALLS[way], f"rank {rank}: {messages}"
        assert sum(nbytes for _, nbytes in messages) == 7 * 5 * 4, f"rank {rank}: {messages}"


@pytest.mark.ranks(4)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["awaited", "asynchronous"])
def test_each_kind_in_part_of_the_world(ranks: Ranks, asynchronous: bool) -> None:
    xs = rank_inputs(4, shape=(16,), dtype=torch.float64, seed=9)
    expected: list[Tensors] = []
    for rank in range(4):
        found: Tensors = {}
        for place, part in enumerate((slice(4), slice(4, 16))):
            pair = [xs[rank % 2][part], xs[rank % 2 + 2][part]]
            found[f"reduced, {place + 1}"] = torch.minimum(*pair)
            found[f"gathered, {place + 1}"] = torch.cat(pair)
            found[f"scattered, {place + 1}"] = torch.maximum(*pair).chunk(2)[rank // 2]
        expected.append(found)
    assert_same(ranks.run(in_part_of_the_world, xs=xs, asynchronous=asynchronous), expected, ordered=False)


@pytest.mark.ranks(2, 4, 8, device="cuda", largest=True)
def test_in_a_graph(ranks: Ranks) -> None:
    check(ranks, "in_a_graph")
