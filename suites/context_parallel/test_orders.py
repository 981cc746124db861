"""Ranks have the tokens that a load balancer gives them, and bring all together in the order of the sequence."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor.experimental import _attention

from pytest_gpuperf import Ranks
from suites.context_parallel.programs.orders import ordered
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers

pytestmark = [
    pytest.mark.ranks(2),
    pytest.mark.skipif(not hasattr(_attention, "_PTRRLoadBalancer"), reason="this torch has no such load balancers"),
]
BLOCK = 2
"""Tokens."""


def check(ranks: Ranks, order: list[list[int]], documents: list[list[int]] | None, reach: torch.Tensor) -> None:
    tokens = integers((*reach.shape, 3), torch.float64, seed=1)
    turned = torch.stack([of_one[places] for of_one, places in zip(tokens, order * len(tokens), strict=False)])
    got = ranks.run(ordered, tokens=tokens, documents=documents, reach=reach, block=BLOCK)
    assert_same(got, [{"held": part, "together": tokens} for part in turned.chunk(2, 1)], ordered=False)


@pytest.mark.parametrize("documents", [[[4, 8]], [[8, 4], [4, 4, 4]]], ids=["one order", "an order for each sequence"])
def test_head_and_tail_of_each_document(ranks: Ranks, documents: list[list[int]]) -> None:
    order = []
    for lengths in documents:
        quarters = [torch.arange(sum(lengths)).split(lengths)[n].chunk(4) for n in range(len(lengths))]
        places = [place for one in quarters for n in (0, 3, 1, 2) for place in one[n].tolist()]
        order.append(places)
    check(ranks, order, documents, torch.ones(2, 12, dtype=torch.int64))


def test_blocks_by_their_work(ranks: Ranks) -> None:
    """The longest block to one rank, the next two to the other one, and so on; each rank has its blocks in order."""
    reach = torch.tensor([[1, 1, 9, 9, 3, 3, 7, 7, 5, 5, 12, 12], [12, 12, 9, 9, 7, 7, 5, 5, 3, 3, 1, 1]])
    order = []
    for work in reach[:, ::BLOCK].tolist():
        longest = sorted(range(len(work)), key=lambda block: -work[block])
        blocks = sorted(longest[n] for n in (0, 3, 4)) + sorted(longest[n] for n in (1, 2, 5))
        order.append([BLOCK * block + n for block in blocks for n in range(BLOCK)])
    check(ranks, order, None, reach)
