"""Gradients too long for the dtype that computes them are summed, kept and applied in float32, over two steps."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from pytest_gpuperf import Ranks
from suites.sharded_data_parallel.programs import stages as programs
from suites.sharded_data_parallel.programs.mixed_precision import REDUCED_IN_FULL, LongGradients, Precision, seen_dtypes
from suites.sharded_data_parallel.reference import assert_fully_sharded

precisions = pytest.mark.parametrize("precision", REDUCED_IN_FULL, ids=lambda precision: str(precision.compute)[6:])


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype)


@pytest.mark.ranks(2, 4)
@precisions
@pytest.mark.parametrize("accumulation", ["whole", "gathered"])
def test_long_gradients(ranks: Ranks, precision: Precision, accumulation: programs.Accumulation) -> None:
    assert_long_gradients(ranks, precision, accumulation=accumulation)


@pytest.mark.ranks(4)
@precisions
@pytest.mark.parametrize("accumulation", ["whole", "sharded"])
def test_long_gradients_of_replicas(ranks: Ranks, precision: Precision, accumulation: programs.Accumulation) -> None:
    assert_long_gradients(ranks, precision, replicas=2, accumulation=accumulation)


def assert_long_gradients(
    ranks: Ranks, precision: Precision, *, replicas: int = 1, accumulation: programs.Accumulation = "whole"
) -> None:
    """In both steps: of the second one the outputs show the parameters that the first one has left."""
    problem = LongGradients(world_size=ranks.world_size, seed=1)
    accounts = ranks.run(
        programs.account,
        programs.fully_sharded,
        problem=problem,
        replicas=replicas if replicas > 1 else None,
        precision=precision.policy,
        accumulation=accumulation,
    )
    assert_fully_sharded(
        accounts, problem, replicas=replicas, precision=precision, reshard=True, accumulation=accumulation
    )


@pytest.mark.parametrize("world_size", [2, 4])
def test_long_gradients_are_long(world_size: int) -> None:
    """On each rank, in each step, bfloat16 would round some sum; the weights that are gathered it holds."""
    problem = LongGradients(world_size=world_size, seed=1)
    weight = problem.parameters()["shortcut.weight"]
    of_ranks = [problem.sums_of_microbatches(rank) for rank in range(world_size)]
    for of_rank in of_ranks:
        for total in of_rank:
            assert not torch.equal(rounded(total), total)
    for step in range(problem.steps):
        gradient = torch.stack([of_rank[step] for of_rank in of_ranks]).mean(0)
        assert not torch.equal(rounded(gradient), gradient)
        assert torch.equal(rounded(weight), weight)
        weight = weight - gradient


@pytest.mark.ranks(2)
def test_inputs_and_outputs_have_the_dtypes_of_the_policy(ranks: Ranks) -> None:
    half, full = torch.bfloat16, torch.float32
    for policy, expected in (
        (MixedPrecisionPolicy(param_dtype=half), [half, half, half]),
        (MixedPrecisionPolicy(param_dtype=half, output_dtype=full), [half, half, full]),
        (MixedPrecisionPolicy(param_dtype=half, cast_forward_inputs=False), [full, full, full]),
    ):
        for rank, got in enumerate(ranks.run(seen_dtypes, policy=policy)):
            assert got == expected, f"rank {rank}, {policy}: by place, by name and returned {got}, expected {expected}"
