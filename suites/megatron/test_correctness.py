"""Megatron-Core's layers and schedule compute what the whole model does: outputs and all gradients, exactly.

Everything is a whole number in float64, below 2**53, and what is checked is a second step. The number of microbatches,
by which Megatron divides, is a power of 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Ranks
from suites.megatron import programs
from suites.megatron.programs import Microbatch
from suites.megatron.reference import MLP_DIMS, needs_megatron, whole_mlp
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.references import by_autograd
from suites.shared.sharding import per_rank, shard
from suites.shared.step import Step, Tensors, once, second
from suites.shared.strategies import seeds

# Megatron-Core keeps much in its modules, which another suite's ranks would find there; to import it takes seconds.
pytestmark = pytest.mark.ranks(2, isolation="file")

DTYPE = torch.float64

# With sequence parallelism, so are input and output, by their first dimension.
SEQUENCE_DIMS = {**MLP_DIMS, "output": 0, "input gradient": 0}


@pytest.fixture
def megatron(ranks: Ranks) -> Iterator[None]:
    """Imported, and afterwards without groups: the next test of these ranks finds none of this one's."""
    ranks.run(programs.import_all)
    yield
    ranks.run(programs.forget)


def drawn(*shape: int, seed: int, part: int, high: int = 15) -> torch.Tensor:
    return integers(shape, DTYPE, seed=seed * 64 + part, low=-high, high=high)


def mlp_inputs(*, length: int, batch: int, width: int, hidden: int, bias: bool, seed: int) -> dict[str, Any]:
    parameters = {
        "column.weight": drawn(hidden, width, seed=seed, part=0),
        "column.bias": drawn(hidden, seed=seed, part=2),
        "row.weight": drawn(width, hidden, seed=seed, part=1),
        "row.bias": drawn(width, seed=seed, part=3),
    }
    if not bias:
        parameters = {name: value for name, value in parameters.items() if name.endswith("weight")}
    x, grad = (drawn(length, batch, width, seed=seed, part=part) for part in (4, 5))
    return {"parameters": parameters, "x": x, "grad": grad}


def assert_mlp(ranks: Ranks, program: Callable[..., Step[Tensors]], inputs: dict[str, Any], **kwargs: bool) -> None:
    results = ranks.run(second, program, **inputs, **kwargs)
    dims = SEQUENCE_DIMS if kwargs.get("sequence_parallel") else MLP_DIMS
    whole = by_autograd(whole_mlp, {"input": inputs["x"], **inputs["parameters"]}, inputs["grad"])
    assert_same(results, per_rank(whole, len(results), dims), ordered=False)


A_SHAPE = {"length": 4, "batch": 2, "width": 4, "hidden": 8}


@needs_megatron
@pytest.mark.usefixtures("megatron")
@given(
    length=st.integers(1, 3),
    batch=st.integers(1, 2),
    width=st.integers(1, 4),
    hidden=st.integers(1, 4),
    bias=st.booleans(),
    seed=seeds,
)
def test_mlp(ranks: Ranks, length: int, batch: int, width: int, hidden: int, bias: bool, seed: int) -> None:
    inputs = mlp_inputs(length=length, batch=batch, width=width, hidden=hidden * ranks.world_size, bias=bias, seed=seed)
    assert_mlp(ranks, programs.mlp, inputs)


@needs_megatron
@pytest.mark.usefixtures("megatron")
@pytest.mark.ranks(4, isolation="file")
def test_mlp_on_four_ranks(ranks: Ranks) -> None:
    for bias in (True, False):
        assert_mlp(ranks, programs.mlp, mlp_inputs(**A_SHAPE, bias=bias, seed=1))


@needs_megatron
@pytest.mark.usefixtures("megatron")
@pytest.mark.ranks(
    2, 4, device="cuda", isolation="file"
)  # Megatron gathers and scatters sequences in memory of the current GPU
def test_mlp_with_sequence_parallelism(ranks: Ranks) -> None:
    for bias in (True, False):
        assert_mlp(ranks, programs.mlp, mlp_inputs(**A_SHAPE, bias=bias, seed=1), sequence_parallel=True)


@needs_megatron
@pytest.mark.usefixtures("megatron")
def test_features_that_the_ranks_do_not_divide_are_refused(ranks: Ranks) -> None:
    inputs = mlp_inputs(length=1, batch=1, width=2, hidden=3, bias=False, seed=1)
    with pytest.raises(AssertionError, match="3 is not divisible by 2"):
        ranks.run(once, programs.mlp, **inputs)


def assert_embedding(ranks: Ranks, *, rows: int, width: int, shape: tuple[int, ...], seed: int) -> None:
    vocabulary = rows * ranks.world_size
    # Rows are looked up, not added: they may need all bits.
    weight = drawn(vocabulary, width, seed=seed, part=0, high=2**52)
    tokens = integers(shape, torch.int64, seed=seed * 64 + 1, low=0, high=vocabulary - 1)
    grad = drawn(*shape, width, seed=seed, part=2)
    results = ranks.run(second, programs.embedding, tokens=tokens, grad=grad, weight=weight)
    # A product with one-hot rows, where the embedding looks rows up.
    chosen = functional.one_hot(tokens.flatten(), vocabulary).to(DTYPE)
    whole = {
        "output": (chosen @ weight).view(*shape, width),
        "weight gradient": chosen.T @ grad.view(-1, width),
    }
    assert_same(results, per_rank(whole, len(results), {"weight gradient": 0}), ordered=False)


@needs_megatron
@pytest.mark.usefixtures("megatron")
@given(
    rows=st.integers(1, 8), width=st.integers(1, 4), shape=st.tuples(st.integers(1, 3), st.integers(1, 4)), seed=seeds
)
def test_embedding(ranks: Ranks, rows: int, width: int, shape: tuple[int, ...], seed: int) -> None:
    assert_embedding(ranks, rows=rows, width=width, shape=shape, seed=seed)


@needs_megatron
@pytest.mark.usefixtures("megatron")
@pytest.mark.ranks(4, isolation="file")
def test_embedding_on_four_ranks(ranks: Ranks) -> None:
    assert_embedding(ranks, rows=3, width=4, shape=(4, 5), seed=1)


def assert_pipeline(ranks: Ranks, *, count: int, rows: int, width: int, seed: int) -> None:
    degree = ranks.world_size
    weights = [drawn(width, width, seed=seed, part=stage, high=3) for stage in range(degree)]
    microbatches: list[Microbatch] = [
        (drawn(2, rows, width, seed=seed, part=part, high=3), drawn(2, rows, width, seed=seed, part=part + 1, high=3))
        for part in range(8, 8 + 2 * count, 2)
    ]
    results = ranks.run(second, programs.pipeline, weights=weights, microbatches=microbatches)
    leaves = [weight.clone().requires_grad_() for weight in weights]
    losses = []
    for x, target in microbatches:
        for leaf in leaves:
            x = functional.linear(x, leaf).relu()
        losses.append((x * target).sum())
    gradients = torch.autograd.grad(torch.stack(losses).mean(), leaves)
    assert torch.equal(results[-1].pop("losses"), torch.stack(losses)), "the last rank has wrong losses"
    assert_same(results, [{"weight gradient": gradient} for gradient in gradients], ordered=False)


@needs_megatron
@pytest.mark.usefixtures("megatron")
@pytest.mark.ranks(2, 4, 8, device="cuda", isolation="file")  # the schedule counts tokens, and receives, in GPU memory
@pytest.mark.examples(1 / 3)
@given(rows=st.integers(1, 2), width=st.integers(1, 4), seed=seeds)
def test_1f1b(ranks: Ranks, rows: int, width: int, seed: int) -> None:
    # Fewer microbatches than stages, as many, and more. Megatron's groups are made once for all.
    for count in (1, 2, 8):
        assert_pipeline(ranks, count=count, rows=rows, width=width, seed=seed)


def my_mlp(ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Tensors) -> Step[Tensors]:
    """An implementation of a user's own: the weights split as Megatron does, the sums by plain collectives."""
    dims = {"column.weight": 0, "column.bias": 0, "row.weight": 1}
    mine = {
        name: (shard(value, ctx.world_size, dims[name])[ctx.rank] if name in dims else value).to(ctx.device)
        for name, value in parameters.items()
    }
    leaves = {name: value.clone().requires_grad_() for name, value in {"input": x.to(ctx.device), **mine}.items()}

    def step() -> Tensors:
        hidden = functional.linear(leaves["input"], leaves["column.weight"], leaves.get("column.bias")).relu()
        names = [name for name in leaves if name != "row.bias"]
        output = functional.linear(hidden, leaves["row.weight"])
        gradients = torch.autograd.grad(output, [leaves[name] for name in names], grad.to(ctx.device))
        result = {f"{name} gradient": g for name, g in zip(names, gradients, strict=True)}
        result["output"] = output.detach().clone()
        for summed in (result["output"], result["input gradient"]):
            torch.distributed.all_reduce(summed)
        if "row.bias" in leaves:
            result["output"] += mine["row.bias"]
            result["row.bias gradient"] = grad.to(ctx.device).flatten(0, -2).sum(dim=0)
        return result

    return step


@pytest.mark.ranks(2, 4)
def test_your_own_mlp(ranks: Ranks) -> None:
    for bias in (True, False):
        assert_mlp(ranks, my_mlp, mlp_inputs(**A_SHAPE, bias=bias, seed=1))


@pytest.mark.ranks(2)
def test_operations_are_those_of_torchs_counter(ranks: Ranks) -> None:
    sizes = programs.MlpSizes(length=6, width=4, hidden=10, dtype=torch.float32)

    def counted(ctx: Context) -> int:
        parameters, x, grad = programs.drawn(ctx, sizes)
        with FlopCounterMode(display=False) as counter:
            by_autograd(whole_mlp, {"input": x, **parameters}, grad)
        return int(counter.get_total_flops())

    assert ranks.run(counted) == [sizes.flop] * ranks.world_size
