"""Many small all_reduces give the same sums however they are issued, step after step."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.collectives.programs.coalescing import wrong_parts
from suites.collectives.reference import Collective

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


@pytest.mark.ranks(2, 4, 8, device="cuda", largest=True)
def test_in_a_graph(ranks: Ranks) -> None:
    check(ranks, "in_a_graph")
