"""A layer split over ranks computes what the whole layer does: output and all gradients, exactly.

Inputs, weights and output gradients are whole numbers in float64. Every sum and product then stays a whole
number far below 2**53, so that no order of the additions, and no split of them over ranks, rounds anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.data import integers, once
from suites.strategies import seeds, worlds
from suites.tensor_parallel import programs
from suites.tensor_parallel.programs import Parameters, Step, shard

pytestmark = pytest.mark.ranks(2, 4)

DTYPE = torch.float64

# Nothing is rounded: see above. The largest number is an output of the MLP, of 8 hidden features and 5 inputs
# of at most 15 each: (15 * 15 * 5 + 60) * 15 * 8 + 60 < 2**18.
EXACT = 0.0

# The dimensions by which each style shards a layer's weight and bias, and with them their gradients.
COLUMN = {"weight gradient": 0, "bias gradient": 0}
ROW = {"weight gradient": 1}

Results = list[dict[str, torch.Tensor]]

# DTensor plans each operation anew for each shape it meets, in 20 ms: the dimensions that stay whole, which
# the split does not touch, take few values.
batches = st.sampled_from([(1,), (2, 3)])
features = st.sampled_from([1, 5])


def divisible(degree: int) -> st.SearchStrategy[int]:
    return st.sampled_from([degree, 2 * degree])


def shardable(degree: int) -> st.SearchStrategy[int]:
    """Numbers of features that leave some ranks with fewer than others, or none.

    Not fewer than ranks: those DTensor does not shard, it copies them.
    """
    return st.sampled_from([degree, degree + 1, 2 * degree - 1])


def parameters(*shapes: tuple[str, int, int], degree: int, bias: bool, seed: int) -> Parameters:
    """A weight for each (prefix, outputs, inputs), and a bias if asked for.

    A row-parallel layer adds a share of its bias, bias / R, on each rank: multiples of R have whole shares.
    """
    drawn = {}
    for index, (prefix, outputs, inputs) in enumerate(shapes):
        drawn[f"{prefix}weight"] = integers((outputs, inputs), DTYPE, seed=seed * 16 + 2 * index)
        if bias:
            drawn[f"{prefix}bias"] = degree * integers((outputs,), DTYPE, seed=seed * 16 + 2 * index + 1)
    return drawn


def x_and_grad(batch: tuple[int, ...], inputs: int, outputs: int, seed: int) -> dict[str, torch.Tensor]:
    """The input and the gradient of the output, the same for all ranks."""
    return {
        "x": integers((*batch, inputs), DTYPE, seed=seed * 16 + 14),
        "grad": integers((*batch, outputs), DTYPE, seed=seed * 16 + 15),
    }


def linear(leaves: dict[str, torch.Tensor], prefix: str = "") -> torch.Tensor:
    return functional.linear(leaves["input"], leaves[f"{prefix}weight"], leaves.get(f"{prefix}bias"))


def two_layers(leaves: dict[str, torch.Tensor]) -> torch.Tensor:
    return linear({**leaves, "input": linear(leaves, "0.").relu()}, "2.")


def reference(
    layer: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    parameters: Parameters,
    *,
    x: torch.Tensor,
    grad: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The whole layer's output and gradients, by another way than the programs': no module, no ``.grad``."""
    leaves = {name: value.clone().requires_grad_() for name, value in {"input": x, **parameters}.items()}
    output = layer(leaves)
    gradients = torch.autograd.grad(output, list(leaves.values()), grad)
    return {"output": output} | {f"{name} gradient": g for name, g in zip(leaves, gradients, strict=True)}


def per_rank(whole: dict[str, torch.Tensor], degree: int, dims: dict[str, int]) -> Results:
    """What each rank should hold: its shard along the dimension given for a name, and all of the others."""
    results: Results = [{} for _ in range(degree)]
    for name, tensor in whole.items():
        parts = shard(tensor, degree, dims[name]) if name in dims else [tensor] * degree
        for result, part in zip(results, parts, strict=True):
            result[name] = part
    return results


def assert_close(got: torch.Tensor, expected: torch.Tensor, atol: float, where: str) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol, msg=lambda text: f"{where}: {text}")


def assert_same(got: Results, expected: Results) -> None:
    for rank, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert list(have) == list(want)
        for name, tensor in want.items():
            assert_close(have[name], tensor, EXACT, f"rank {rank}, {name}")


@given(data=st.data(), batch=batches, inputs=features, bias=st.booleans(), gather=st.booleans(), seed=seeds)
def test_column_parallel_linear(
    ranks: Ranks, data: st.DataObject, batch: tuple[int, ...], inputs: int, bias: bool, gather: bool, seed: int
) -> None:
    world = data.draw(worlds(ranks))
    outputs = data.draw(shardable(world.world_size))
    layer = parameters(("", outputs, inputs), degree=world.world_size, bias=bias, seed=seed)
    tensors = x_and_grad(batch, inputs, outputs, seed)
    got = world.run(once, programs.column_parallel_linear, parameters=layer, gather_output=gather, **tensors)
    whole = reference(linear, layer, **tensors)
    dims = COLUMN if gather else {"output": -1, **COLUMN}
    assert_same(got, per_rank(whole, world.world_size, dims))


@given(data=st.data(), batch=batches, outputs=features, bias=st.booleans(), sharded=st.booleans(), seed=seeds)
def test_row_parallel_linear(
    ranks: Ranks, data: st.DataObject, batch: tuple[int, ...], outputs: int, bias: bool, sharded: bool, seed: int
) -> None:
    world = data.draw(worlds(ranks))
    degree = world.world_size
    # A rank that is given its features alone takes R times as many for the whole: they must divide evenly.
    inputs = data.draw(divisible(degree) if sharded else shardable(degree))
    layer = parameters(("", outputs, inputs), degree=degree, bias=bias, seed=seed)
    tensors = x_and_grad(batch, inputs, outputs, seed)
    got = world.run(once, programs.row_parallel_linear, parameters=layer, input_is_sharded=sharded, **tensors)
    whole = reference(linear, layer, **tensors)
    dims = {"input gradient": -1, **ROW} if sharded else ROW
    assert_same(got, per_rank(whole, degree, dims))


@given(data=st.data(), batch=batches, width=features, bias=st.booleans(), local=st.booleans(), seed=seeds)
def test_mlp(
    ranks: Ranks, data: st.DataObject, batch: tuple[int, ...], width: int, bias: bool, local: bool, seed: int
) -> None:
    world = data.draw(worlds(ranks))
    degree = world.world_size
    hidden = data.draw((divisible if local else shardable)(degree))
    layers = parameters(("0.", hidden, width), ("2.", width, hidden), degree=degree, bias=bias, seed=seed)
    tensors = x_and_grad(batch, width, width, seed)
    got = world.run(once, programs.mlp, parameters=layers, local_hidden=local, **tensors)
    whole = reference(two_layers, layers, **tensors)
    dims = {f"0.{name}": dim for name, dim in COLUMN.items()} | {f"2.{name}": dim for name, dim in ROW.items()}
    assert_same(got, per_rank(whole, degree, dims))


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
def test_a_broken_layer_is_found(ranks: Ranks, broken: Callable[..., Step], wrong: str, dims: dict[str, int]) -> None:
    layer = parameters(("", 8, 8), degree=ranks.world_size, bias=True, seed=1)
    tensors = x_and_grad((3,), 8, 8, 1)
    got = ranks.run(once, broken, parameters=layer, **tensors)
    whole = reference(linear, layer, **tensors)
    with pytest.raises(AssertionError, match=f"^rank 0, {wrong}: "):
        assert_same(got, per_rank(whole, ranks.world_size, dims))


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


def test_an_mlp_that_gathers_its_hidden_features_is_found(ranks: Ranks) -> None:
    for forward, _ in collectives(ranks, gather_hidden=True):
        assert forward == {"all_gather_into_tensor": 1, "all_reduce": 1}


def product_of(
    ctx: Context, program: Callable[..., Callable[[], torch.Tensor]], **sizes: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What this rank multiplied, and the product that the program's step returned."""
    return *programs.matmul_inputs(ctx, **sizes), once(ctx, program, **sizes)


def assert_products(ranks: Ranks, program: Callable[..., Callable[[], torch.Tensor]], rows: int, k: int) -> None:
    degree = ranks.world_size
    sizes = {"m": rows * degree, "k": k, "n": 16 * degree}
    results = ranks.run(product_of, program, dtype=DTYPE, **sizes)
    a = torch.cat([shard_of_a for shard_of_a, _, _ in results])
    # A sum of k products is off by at most k * u of the sum of their magnitudes (Higham, Accuracy and Stability,
    # section 3.1), u = 2**-53; that sum is at most |row of a| * |column of b|; once here and once on the rank.
    for rank, (_, b, product) in enumerate(results):
        bound = 2 * k * 2**-53 * float(a.norm(dim=1).max() * b.norm(dim=0).max())
        assert_close(product, a @ b, bound, f"rank {rank}")
    assert len({tuple(b.flatten().tolist()) for _, b, _ in results}) == degree
    assert len(a.unique(dim=0)) == len(a)


@given(rows=st.integers(1, 8), k=st.integers(1, 64))
def test_all_gather_then_matmul(ranks: Ranks, rows: int, k: int) -> None:
    assert_products(ranks, programs.all_gather_then_matmul, rows, k)


@pytest.mark.ranks(2, 4, 8, device="cuda")
@pytest.mark.parametrize("rows", [16, 48])
def test_fused_all_gather_matmul(ranks: Ranks, rows: int) -> None:
    assert_products(ranks, programs.fused_all_gather_matmul, rows, k=64)
