"""A layer split over ranks computes what the whole layer does: output and all gradients, exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.shared.comparison import assert_same
from suites.shared.sharding import per_rank, shard
from suites.shared.step import Step, Tensors, once
from suites.shared.strategies import seeds, worlds
from suites.shared.training import training_step
from suites.tensor_parallel.programs import linear_layers as programs
from suites.tensor_parallel.reference import linear, parameters, whole_layer, x_and_grad

pytestmark = pytest.mark.ranks(2, 4)

# The dimensions by which each style shards a layer's weight and bias, and with them their gradients.
COLUMN = {"weight gradient": 0, "bias gradient": 0}
ROW = {"weight gradient": 1}

# DTensor plans each operation anew for each shape it meets, in 20 ms or more: the dimensions that stay whole, which
# the split does not touch, take one value.
BATCH, WIDTH = (2, 3), 5


def features(degree: int, *, divisible: bool) -> int:
    """How many to split; unless ``divisible`` so that some ranks have fewer than others, or none.

    Not fewer than ranks: those DTensor does not shard, it copies them.
    """
    return 2 * degree if divisible else degree + 1


def two_layers(leaves: Tensors) -> torch.Tensor:
    return linear({**leaves, "input": linear(leaves, "0.").relu()}, "2.")


@given(
    data=st.data(),
    layer=st.sampled_from(["column", "row", "mlp"]),
    bias=st.booleans(),
    local=st.booleans(),
    seed=seeds,
)
def test_linear_layers(ranks: Ranks, data: st.DataObject, layer: str, bias: bool, local: bool, seed: int) -> None:
    """``local``: what is split passes between layers as each rank's plain tensor, and not as a whole."""
    world = data.draw(worlds(ranks))
    degree = world.world_size
    # A rank that is given its features alone takes R times as many for the whole: they must divide evenly. Where that
    # is not so they don't; a column-parallel layer, which takes all, has it the other way round.
    split = features(degree, divisible=local == (layer != "column"))
    draw = functools.partial(parameters, degree=degree, bias=bias, seed=seed)
    match layer:
        case "column":
            layers, tensors = draw(("", split, WIDTH)), x_and_grad(BATCH, WIDTH, split, seed)
            dims = {"output": -1, **COLUMN} if local else COLUMN
            got = world.run(
                once, programs.column_parallel_linear, parameters=layers, gather_output=not local, **tensors
            )
        case "row":
            layers, tensors = draw(("", WIDTH, split)), x_and_grad(BATCH, split, WIDTH, seed)
            dims = {"input gradient": -1, **ROW} if local else ROW
            got = world.run(once, programs.row_parallel_linear, parameters=layers, input_is_sharded=local, **tensors)
        case _:
            layers = draw(("0.", split, WIDTH), ("2.", WIDTH, split))
            tensors = x_and_grad(BATCH, WIDTH, WIDTH, seed)
            dims = {f"0.{name}": dim for name, dim in COLUMN.items()} | {f"2.{name}": dim for name, dim in ROW.items()}
            got = world.run(once, programs.mlp, parameters=layers, local_hidden=local, **tensors)
    whole = whole_layer(two_layers if layer == "mlp" else linear, layers, **tensors)
    assert_same(got, per_rank(whole, degree, dims))


@pytest.mark.deliberate_break
@pytest.mark.parametrize(
    ("broken", "wrong", "dims"),
    [
        (programs.row_parallel_linear_without_all_reduce, "output", {"input gradient": -1, **ROW}),
        (programs.row_parallel_linear_with_bias_on_every_rank, "output", {"input gradient": -1, **ROW}),
        (
            programs.column_parallel_linear_without_input_gradient_reduction,
            "input gradient",
            {"output": -1, **COLUMN},
        ),
    ],
    ids=["no all-reduce", "bias on every rank", "no reduction of the input gradient"],
)
def test_a_broken_layer_is_found(
    ranks: Ranks, broken: Callable[..., Step[Tensors]], wrong: str, dims: dict[str, int]
) -> None:
    layer = parameters(("", 8, 8), degree=ranks.world_size, bias=True, seed=1)
    tensors = x_and_grad((3,), 8, 8, 1)
    got = ranks.run(once, broken, parameters=layer, **tensors)
    whole = whole_layer(linear, layer, **tensors)
    with pytest.raises(AssertionError, match=f"^rank 0, {wrong}: "):
        assert_same(got, per_rank(whole, ranks.world_size, dims))


class SumOverRanks(torch.autograd.Function):
    """Someone's own: an all-reduce forward, and nothing backward, since every rank's gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class TheirRowParallel(nn.Module):
    """Someone's own row-parallel layer, of plain tensors."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = SumOverRanks.apply(functional.linear(x, self.weight))  # type: ignore[no-untyped-call]
        return total


def their_row_parallel(ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Tensors) -> Step[Tensors]:
    mine = shard(parameters["weight"], ctx.world_size, 1)[ctx.rank].to(ctx.device)
    some_features = shard(x, ctx.world_size, -1)[ctx.rank].to(ctx.device)
    return training_step(TheirRowParallel(mine), some_features, grad.to(ctx.device))


def test_your_own_layer(ranks: Ranks) -> None:
    layer = parameters(("", 5, 8), degree=ranks.world_size, bias=False, seed=1)
    tensors = x_and_grad(BATCH, 8, 5, 1)
    got = ranks.run(once, their_row_parallel, parameters=layer, **tensors)
    whole = whole_layer(linear, layer, **tensors)
    assert_same(got, per_rank(whole, ranks.world_size, {"input gradient": -1, "weight gradient": 1}))


def collectives(ranks: Ranks, *, gather_hidden: bool) -> list[tuple[dict[str, int], dict[str, int]]]:
    layers = parameters(("0.", 8, 8), ("2.", 8, 8), degree=ranks.world_size, bias=True, seed=1)
    return ranks.run(
        programs.mlp_collectives, parameters=layers, gather_hidden=gather_hidden, **x_and_grad((3,), 8, 8, 1)
    )


def test_mlp_issues_one_all_reduce_each_way(ranks: Ranks) -> None:
    for forward, backward in collectives(ranks, gather_hidden=False):
        assert forward == {"all_reduce": 1}
        assert sum(forward.values()) == 1
        assert backward == {"all_reduce": 1}


@pytest.mark.deliberate_break
def test_an_mlp_that_gathers_its_hidden_features_is_found(ranks: Ranks) -> None:
    for forward, _ in collectives(ranks, gather_hidden=True):
        assert forward == {"all_gather_into_tensor": 1, "all_reduce": 1}
