"""Ranks have their queries' part of a mask of documents, in whatever order the tokens are shared out."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor.experimental import _attention

from pytest_gpuperf import Ranks
from suites.context_parallel.programs.masked import Balancer, attended, attended_by_heads
from suites.context_parallel.reference import drawn
from suites.shared.comparison import assert_same
from suites.shared.references import by_autograd
from suites.shared.step import Tensors

pytestmark = pytest.mark.skipif(
    not hasattr(_attention, "_PTRRLoadBalancer"), reason="this torch has no such load balancers"
)
LENGTHS = [[96, 288], [240, 144]]
"""Tokens of each document of two sequences."""


@pytest.mark.ranks(3)
@pytest.mark.parametrize("balancer", ["none", "head and tail", "documents", "blocks"])
def test_a_mask_of_documents(ranks: Ranks, balancer: Balancer) -> None:
    """Ranks have their queries' part of the mask, whatever order of the tokens they share."""
    tensors = drawn(batch=2, heads=2, groups=1, tokens=sum(LENGTHS[0]), features=4, dtype=torch.float64, seed=1)
    document = torch.stack([torch.arange(2).repeat_interleave(torch.tensor(one)) for one in LENGTHS])
    hidden = ((document[:, :, None] != document[:, None]) | torch.ones(384, 384, dtype=torch.bool).triu(1))[:, None]

    expected = attention_of(tensors, hidden)
    got = ranks.run(attended, balancer=balancer, lengths=LENGTHS, **tensors)
    order = torch.cat([of_rank["place"] for of_rank in got], 1)
    assert torch.equal(order.sort(1).values, torch.arange(384).expand(2, 384)), "a token is nobody's, or of two ranks"
    assert torch.equal(order[0], torch.arange(384)) == (balancer == "none")
    assert torch.equal(order[0], order[1]) == (balancer in ("none", "head and tail"))
    assert_shared_out(got, order, hidden, expected)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("balanced", [False, True], ids=["in order", "head and tail"])
def test_a_mask_of_each_head(ranks: Ranks, balanced: bool) -> None:
    """The sequences of a group share it; both groups of ranks have two sequences of their own."""
    reach, tokens = [256, 60], 256
    tensors = drawn(batch=4, heads=2, groups=1, tokens=tokens, features=4, dtype=torch.float64, seed=1)
    got = ranks.run(attended_by_heads, balanced=balanced, reach=reach, replicas=2, **tensors)
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    hidden = torch.stack([(distance < 0) | (distance >= most) for most in reach])[None].expand(2, -1, -1, -1)
    for group, of_group in enumerate((got[:2], got[2:])):
        order = torch.cat([of_rank["place"] for of_rank in of_group], 1)
        assert torch.equal(order[0], torch.arange(tokens)) != balanced
        own = {name: tensor[2 * group : 2 * group + 2] for name, tensor in tensors.items()}
        assert_shared_out(of_group, order, hidden, attention_of(own, hidden))


def attention_of(tensors: Tensors, hidden: torch.Tensor) -> Tensors:
    """Output and gradients of the whole sequences."""

    def formula(leaves: Tensors) -> torch.Tensor:
        scores = leaves["query"] @ leaves["key"].mT / 2
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ leaves["value"]

    return by_autograd(formula, {name: tensors[name] for name in ("query", "key", "value")}, tensors["grad"])


def assert_shared_out(got: list[Tensors], order: torch.Tensor, hidden: torch.Tensor, expected: Tensors) -> None:
    """Ranks have their tokens' results, and the blocks of the mask in which they see something."""
    sequence = torch.arange(len(order))[:, None, None]
    for rank, of_rank in enumerate(got):
        place = of_rank.pop("place")
        whole, blocks = of_rank.pop("together"), of_rank.pop("blocks")
        for head in range(hidden.shape[1]):
            seen = ~hidden[:, head][sequence, place[:, :, None], order[:, None]]
            full = seen.unflatten(1, (-1, 128)).unflatten(3, (-1, 128)).any(2).any(-1)
            of_head = blocks[:, head].bool().expand_as(full)
            assert torch.equal(of_head, full), f"rank {rank} has the blocks {blocks[:, head]} of head {head}"
        mine = {
            name: torch.stack([one[:, places] for one, places in zip(tensor, place, strict=True)])
            for name, tensor in expected.items()
        }
        assert_same([of_rank | {"together": whole}], [mine | {"together": expected["output"]}], atol=1e-11)
