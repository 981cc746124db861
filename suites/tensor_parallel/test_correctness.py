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
from suites.shared.inputs import Given, full_width
from suites.shared.sharding import per_rank, shard
from suites.shared.step import Step, Tensors, each_step, once
from suites.shared.strategies import seeds, worlds
from suites.shared.training import training_step
from suites.tensor_parallel.programs import linear_layers as programs
from suites.tensor_parallel.reference import (
    DTYPE,
    all_wide,
    assert_steps,
    linear,
    parameters,
    whole_layer,
    x_and_grad,
)

pytestmark = pytest.mark.ranks(2, 4)

# The dimensions by which each style shards a layer's weight and bias, and with them their gradients.
COLUMN = {"weight gradient": 0, "bias gradient": 0}
ROW = {"weight gradient": 1}
MLP = {f"0.{name}": dim for name, dim in COLUMN.items()} | {f"2.{name}": dim for name, dim in ROW.items()}

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
    run = functools.partial(world.run, each_step)
    match layer:
        case "column":
            given = all_wide(draw(("", split, WIDTH)), seed, **x_and_grad(BATCH, WIDTH, split, seed))
            dims = {"output": -1, **COLUMN} if local else COLUMN
            got = run(programs.column_parallel_linear, len(given), given=given, gather_output=not local)
        case "row":
            given = all_wide(draw(("", WIDTH, split)), seed, **x_and_grad(BATCH, split, WIDTH, seed))
            dims = {"input gradient": -1, **ROW} if local else ROW
            got = run(programs.row_parallel_linear, len(given), given=given, input_is_sharded=local)
        case _:
            given = mlp_given(draw, split, seed)
            dims = MLP
            got = run(programs.mlp, len(given), given=given, local_hidden=local)
    assert_steps(got, given, two_layers if layer == "mlp" else linear, dims)


def mlp_given(draw: Callable[..., Tensors], split: int, seed: int) -> list[Given]:
    """An MLP of so many hidden features, and three steps of it."""
    layers = draw(("0.", split, WIDTH), ("2.", WIDTH, split))
    return all_wide(layers, seed, **x_and_grad(BATCH, WIDTH, WIDTH, seed))


@pytest.mark.ranks(2)
def test_large_layers(ranks: Ranks) -> None:
    """70 000 numbers are added up over the ranks, forward and backward: what is sent in pieces has many."""
    rows, hidden, width = 500, 2 * ranks.world_size, 140
    draw = functools.partial(parameters, degree=ranks.world_size, bias=True, seed=1)
    layers = draw(("0.", hidden, width), ("2.", width, hidden))
    for prefix, value in layers.items():  # few, so that sums of many stay exact
        layers[prefix] = value.clamp(-1, 1) * (ranks.world_size if prefix == "2.bias" else 1)
    shape = (rows, width)
    x, grad = (full_width(shape, DTYPE, seed=seed, addends=2**30) for seed in (1, 2))
    given = [Given(layers, x, grad.sign()), Given(layers, x.sign(), grad)]
    got = ranks.run(each_step, programs.mlp, len(given), given=given)
    assert_steps(got, given, two_layers, MLP)


def steps_and_graphs(ctx: Context, given: list[Given]) -> tuple[list[Tensors], int]:
    """What compiled steps return, and how many graphs torch has made for them."""
    # Here, since what the module's globals hold travels to the ranks as a copy.
    from torch._dynamo.utils import counters

    before = int(counters["stats"]["unique_graphs"])
    results = each_step(ctx, programs.mlp, len(given), given=given, compiled=True)
    return results, int(counters["stats"]["unique_graphs"]) - before


@pytest.mark.ranks(2)
def test_compiled_layers(ranks: Ranks) -> None:
    given = mlp_given(functools.partial(parameters, degree=2, bias=True, seed=1), 4, 1)
    results = ranks.run(steps_and_graphs, given)
    assert_steps([of_rank for of_rank, _ in results], given, two_layers, MLP)
    assert [graphs for _, graphs in results] == [1] * ranks.world_size


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
    whole = whole_layer(linear, Given(layer, **tensors))
    assert_same(got, per_rank(whole, ranks.world_size, {"input gradient": -1, "weight gradient": 1}))


def test_mlp_issues_one_all_reduce_each_way(ranks: Ranks) -> None:
    layers = parameters(("0.", 8, 8), ("2.", 8, 8), degree=ranks.world_size, bias=True, seed=1)
    results = ranks.run(programs.mlp_collectives, parameters=layers, **x_and_grad((3,), 8, 8, 1))
    for forward, backward in results:
        assert forward == {"all_reduce": 1}
        assert backward == {"all_reduce": 1}
