"""FSDP2 gathers and reduces what a backward needs, whichever backward comes first, and as its settings say."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from pytest_gpuperf import Ranks
from suites.sharded_data_parallel.programs.order import (
    CALLS,
    ORDERS,
    Reduction,
    backward_after_all,
    embedded,
    placed,
    reductions,
    with_gradients,
)
from suites.sharded_data_parallel.reference import expected_shards
from suites.shared.comparison import assert_close, assert_same
from suites.shared.inputs import integers
from suites.shared.problems import Problem
from suites.shared.references import whole_batch
from suites.shared.sharding import shard
from suites.shared.step import Tensors
from suites.shared.training import trajectory


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("order", "reshard"), list(zip(ORDERS, (True, False), strict=True)))
def test_backwards_after_all_forwards(ranks: Ranks, order: str, reshard: bool) -> None:
    problem = Problem(world_size=2, seed=1, outputs=3, microbatches=3, steps=3)
    got = ranks.run(trajectory, backward_after_all, problem=problem, order=order, reshard=reshard)
    expected = expected_shards(problem, whole_batch(problem), 2)
    assert_same([packed.unpacked() for packed in got], expected, ordered=False)


@pytest.mark.ranks(2)
def test_an_embedding_need_not_be_gathered_for_backward(ranks: Ranks) -> None:
    table, weight = (integers(shape, torch.float64, seed=seed) for seed, shape in enumerate([(5, 3), (3, 3)]))
    tokens = [torch.tensor([0, 4, 4]), torch.tensor([1, 4, 2])]
    counts = torch.stack([torch.bincount(of_rank, minlength=5) for of_rank in tokens]).double()
    of_rows = torch.stack([table[of_rank].sum(0) for of_rank in tokens])
    expected = {
        "embedding.weight": counts.mean(0)[:, None] * weight.sum(0),
        "layer.weight": of_rows.mean(0).expand(3, 3),
    }
    told = [True, False, True, False]
    for rank, (gathered, gradients) in enumerate(
        ranks.run(embedded, told=told, table=table, weight=weight, tokens=tokens)
    ):
        assert gathered == told, f"rank {rank}: the embedding was gathered for backward {gathered}, expected {told}"
        for name, gradient in expected.items():
            assert_close(gradients[name], gradient, f"rank {rank}, {name} gradient")


@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"),
    reason=f"torch {torch.__version__} reduces no gradients of what is unused",
)
@pytest.mark.ranks(2)
def test_what_is_frozen_has_no_gradient_though_what_is_unused_has(ranks: Ranks) -> None:
    assert ranks.run(with_gradients) == [["0.bias", "1.weight", "1.bias"]] * 2


@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_separate_reduce_scatter_group"),
    reason=f"torch {torch.__version__} has no groups for reductions alone",
)
@pytest.mark.ranks(2)
def test_who_reduces_how(ranks: Ranks) -> None:
    """The root has 20 elements with the padding, and 16 more that are not used; its layer has 20."""
    usual: Reduction = ("AVG", True, 20)
    own: Reduction = ("AVG", False, 20)
    expected: dict[str, list[Reduction]] = {
        "nothing": [usual, usual],
        "sums": [("SUM", True, 20), usual],
        "no sums": [usual, usual],
        "a group of its own": [own, usual],
        "groups of their own": [own, own],
        "no group of its own": [usual, own],
        "no groups of their own": [usual, usual],
        "unused ones": [("AVG", True, 36), usual],
        "no unused ones": [usual, usual],
    }
    assert set(expected) == set(CALLS)
    problem = Problem(world_size=2, seed=1, inputs=4, outputs=3, dtype=torch.float32)
    for rank, found in enumerate(ranks.run(reductions, problem=problem, calls=list(expected))):
        for (call, wanted), got in zip(expected.items(), found, strict=True):
            assert got == wanted, f"rank {rank}, {call}: {got}, expected {wanted}"


@pytest.mark.ranks(2)
def test_parameters_of_three_dimensions(ranks: Ranks) -> None:
    """Cut in the middle, and along the last and the first dimension; what is cut in rows is uneven."""
    shapes_and_dims: dict[str, tuple[tuple[int, ...], int | None]] = {
        "middle": ((3, 4, 5), 1),
        "rows": ((3, 2, 2), None),
        "last": ((3, 5, 2), -1),
        "second_last": ((2, 6, 3), -2),
        "bias": ((5,), 0),
    }
    values, *weights = (
        {
            name: integers(shape, torch.float64, seed=8 * number + place)
            for place, (name, (shape, _)) in enumerate(shapes_and_dims.items())
        }
        for number in range(3)
    )
    dims = {name: dim for name, (_, dim) in shapes_and_dims.items()}
    got = ranks.run(placed, values=values, dims=dims, weights=weights)
    expected: list[Tensors] = [{f"{name} in forward": value for name, value in values.items()} for _ in range(2)]
    for rank, own in enumerate(expected):
        for name, value in values.items():
            mean = torch.stack([of_rank[name] for of_rank in weights]).mean(0)
            dim = (dims[name] or 0) % value.dim()
            own |= {name: shard(value, 2, dim)[rank], f"{name} gradient": shard(mean, 2, dim)[rank]}
    assert_same(got, expected, ordered=False)
