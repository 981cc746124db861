"""torchcomms' collectives give what c10d's give, at once and in flight, exactly, and both what one process computes.

The package is not part of torch. Its API is that of its published stubs. Without the package a stand-in of that API
runs the same programs, so that the comparison itself is known to work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.overlap.programs.torchcomms import ROOT, both, missing, new_communicator
from suites.shared.comparison import assert_same
from suites.shared.inputs import rank_inputs
from suites.shared.step import Tensors
from suites.shared.strategies import seeds

STEPS = 3


class StandIn:
    """A communicator with the methods of torchcomms', made of c10d."""

    def all_reduce(self, tensor: torch.Tensor, op: Any, async_op: bool) -> Any:
        return dist.all_reduce(tensor, op, async_op=async_op)

    def broadcast(self, tensor: torch.Tensor, root: int, async_op: bool) -> Any:
        return dist.broadcast(tensor, root, async_op=async_op)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, async_op: bool) -> Any:
        return dist.all_gather_into_tensor(output, given, async_op=async_op)

    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        op: Any,
        async_op: bool,
    ) -> Any:
        return dist.reduce_scatter_tensor(output, given, op, async_op=async_op)

    def all_to_all_single(self, output: torch.Tensor, given: torch.Tensor, async_op: bool) -> Any:
        return dist.all_to_all_single(output, given, async_op=async_op)

    def finalize(self) -> None:
        """Nothing is left open."""


class Stale(StandIn):
    """Forgets its second broadcast."""

    def __init__(self) -> None:
        self.calls = 0

    def broadcast(self, tensor: torch.Tensor, root: int, async_op: bool) -> Any:
        self.calls += 1
        return super().broadcast(tensor if self.calls != 2 else tensor.clone(), root, async_op)


def stand_in(ctx: Context) -> tuple[Any, Any]:
    return dist.ReduceOp.SUM, StandIn()


def stale(ctx: Context) -> tuple[Any, Any]:
    return dist.ReduceOp.SUM, Stale()


@pytest.mark.ranks(2, 4)
@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.examples(0.2)
@given(numel=st.integers(1, 40), asynchronous=st.booleans(), seed=seeds)
def test_as_c10d(ranks: Ranks, numel: int, asynchronous: bool, seed: int) -> None:
    assert_as_c10d(ranks, new_communicator, numel, asynchronous, seed)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["at once", "in flight"])
def test_the_comparison(ranks: Ranks, asynchronous: bool) -> None:
    assert_as_c10d(ranks, stand_in, 5, asynchronous, seed=1)
    with pytest.raises(AssertionError, match=r"^rank 0, step 2, torchcomms, broadcast: got"):
        assert_as_c10d(ranks, stale, 5, asynchronous, seed=1)


def assert_as_c10d(ranks: Ranks, make: Callable[..., Any], numel: int, asynchronous: bool, seed: int) -> None:
    got = ranks.run(both, make=make, numel=numel, seed=seed, asynchronous=asynchronous, steps=STEPS)
    for step in range(STEPS):
        degree = ranks.world_size
        xs = rank_inputs(degree, shape=(degree, numel), dtype=torch.float64, seed=seed * 8 + step)
        expected = [
            {
                f"step {step + 1}, {library}, {name}": value
                for library in ("torchcomms", "c10d")
                for name, value in held(xs, rank).items()
            }
            for rank in range(degree)
        ]
        named = [
            {
                f"step {step + 1}, {library}, {name}": value
                for library, tensors in zip(("torchcomms", "c10d"), of_rank[step], strict=True)
                for name, value in tensors.items()
            }
            for of_rank in got
        ]
        assert_same(named, expected)


def held(xs: list[torch.Tensor], rank: int) -> Tensors:
    """What a rank has of each collective, and of its own product."""
    summed = torch.stack(xs).sum(0)
    return {
        "all_reduce": summed,
        "broadcast": xs[ROOT],
        "all_gather": torch.cat(xs),
        "reduce_scatter": summed[rank : rank + 1],
        "all_to_all": torch.stack([x[rank] for x in xs]),
        "product": xs[rank] @ xs[rank].T,
    }
