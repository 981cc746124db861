"""Drawn batches: what they hold, what they shrink to, and that they reveal what even ones hide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import find, given, settings
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

from pytest_gpuperf.strategies import Batches, batches
from tests.parity.in_process import parity


@given(data=batches(3))
def test_shares_are_the_whole_and_each_rank_has_some(data: Batches) -> None:
    for step, (tokens, targets) in enumerate(data.whole()):
        shares = [data.share(rank)[step] for rank in range(3)]
        assert torch.equal(torch.cat([x for x, _ in shares]), tokens)
        assert torch.equal(torch.cat([y for _, y in shares]), targets)
        assert all(len(x) and bool((y != -100).any()) for x, y in shares)
        assert torch.equal((targets != -100).sum(1), torch.tensor(data.lengths[step]))


def test_they_shrink_to_even_ones_and_can_be_uneven() -> None:
    least = find(batches(2, longest=4), lambda data: True)
    assert (least.rows, least.lengths) == ((1, 1), ((4, 4), (4, 4)))


def _gradient(shares: list[tuple[torch.Tensor, torch.Tensor]], count: float = 0.0) -> torch.Tensor:
    torch.manual_seed(0)
    embedding, head = nn.Embedding(32, 6), nn.Linear(6, 32)
    tokens, targets = shares[0]
    loss = F.cross_entropy(head(embedding(tokens)).flatten(0, 1), targets.flatten(), reduction="sum")
    (loss / (count or (targets != -100).sum())).backward()
    assert head.weight.grad is not None
    return head.weight.grad


def _mean_of_means(ctx: Any, data: Batches) -> dict[str, torch.Tensor]:
    # What an all_reduce with the mean would give, computed without one.
    return {"gradient": sum((_gradient(data.share(rank)) for rank in range(2)), torch.zeros(())) / 2}


def _sum_over_all(ctx: Any, data: Batches) -> dict[str, torch.Tensor]:
    count = float((data.whole()[0][1] != -100).sum())
    return {"gradient": sum((_gradient(data.share(rank), count) for rank in range(2)), torch.zeros(()))}


def test_they_reveal_a_mean_of_means_and_pass_the_right_program() -> None:
    wrong: list[Batches] = []

    @settings(max_examples=20, database=None)
    @given(data=batches(2, steps=1))
    def runs(data: Batches) -> None:
        def reference() -> dict[str, torch.Tensor]:
            return {"gradient": _gradient(data.whole())}

        assert parity(2).report(reference, _sum_over_all, data).ok
        report = parity(2).report(
            reference, _mean_of_means, data, share=lambda rank: {"gradient": _gradient(data.share(rank))}
        )
        counts = [int((data.share(rank)[0][1] != -100).sum()) for rank in range(2)]
        if not report.ok:
            assert counts[0] != counts[1]
            wrong.append(data)
            assert report.verdict.cause is not None
            assert "the mean of the shares' means" in report.verdict.cause.text

    runs()
    assert wrong


@pytest.mark.parametrize("longest", [1, 5])
def test_no_sequence_is_longer_than_asked_for(longest: int) -> None:
    @settings(max_examples=20, database=None)
    @given(data=batches(2, longest=longest))
    def runs(data: Batches) -> None:
        assert max(max(step) for step in data.lengths) <= longest

    runs()
