"""Shared weights get the gradients of all their uses, and means are exact at both ends of float16's range."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.fsdp import MixedPrecisionPolicy

from pytest_gpuperf import Ranks
from suites.sharded_data_parallel.programs.inputs import WAYS, WIDTH, mean_gradient, mean_of_sums, shared_weights
from suites.shared.comparison import assert_each, assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors
from suites.shared.strategies import seeds

STEPS, MICROBATCHES = 3, 2
LARGE = {2: 60000.0, 4: 32000.0}
"""What so many ranks can average; float16 holds it, and not twice of it, or four times."""
ways = pytest.mark.parametrize("way", WAYS)


@pytest.mark.ranks(4)
@pytest.mark.examples(0.04)
@ways
@given(recompute=st.booleans(), seed=seeds)
def test_weights_that_layers_share(ranks: Ranks, way: str, recompute: bool, seed: int) -> None:
    """Rows that ranks share unevenly: the reference takes the mean of the ranks' sums, as the programs do."""
    weights = {
        name: integers(shape, torch.float64, seed=8 * seed + number, low=-2, high=2)
        for number, (name, shape) in enumerate(
            {"first.weight": (WIDTH, WIDTH), "middle.weight": (WIDTH, WIDTH), "middle.bias": (WIDTH,)}.items()
        )
    }
    rows = integers((STEPS, MICROBATCHES, 6, WIDTH), torch.float64, seed=8 * seed + 4, low=-3, high=3)
    steps = [list(step) for step in rows]
    got = ranks.run(shared_weights, way=way, weights=weights, steps=steps, recompute=recompute)
    assert_same(got, [alone(weights, steps, ranks.world_size)] * ranks.world_size, ordered=False)


def alone(weights: Tensors, steps: list[list[torch.Tensor]], degree: int) -> Tensors:
    """All rows in this process, by the formula."""
    told: Tensors = {}
    for number, microbatches in enumerate(steps, start=1):
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        x = torch.cat(microbatches) @ leaves["first.weight"].T
        for _ in range(2):
            hidden = x @ leaves["middle.weight"].T + leaves["middle.bias"]
            x = hidden * (hidden > 0)
        output = x @ leaves["first.weight"].T
        gradients = torch.autograd.grad(output.sum() / degree, list(leaves.values()))
        weights = {
            name: value - gradient.sign() for (name, value), gradient in zip(weights.items(), gradients, strict=True)
        }
        told |= {f"step {number}, {name} gradient": value for name, value in zip(leaves, gradients, strict=True)} | {
            f"step {number}, {name}": value for name, value in weights.items()
        }
    return told


@pytest.mark.ranks(2, 4)
@pytest.mark.examples(0.04)
@ways
@given(seed=seeds)
def test_means_at_both_ends_of_float16(ranks: Ranks, way: str, seed: int) -> None:
    """The sum of R numbers would overflow, or each of them divided by R would vanish.

    torch divides sharded float16 gradients by 2 before the sum of 2 or 4 ranks, and by the rest after it. Then the sum
    of R is at most 65504, and the smallest number is 2 * 2**-24. Replicated gradients it divides by R before the sum.
    """
    degree = ranks.world_size
    signs = integers((7,), torch.float16, seed=seed, low=0, high=1) * 2 - 1
    large = torch.full((7,), LARGE[degree]).half() * signs
    small = torch.full((7,), 2.0**-24 * (degree if way == "replicated" else 2)).half() * signs
    both = torch.cat([large, small])
    got = ranks.run(mean_gradient, way=way, gradients=[both] * degree)
    assert_each(got, [both] * degree, "mean gradient")


@pytest.mark.ranks(2)
def test_the_dtype_of_reductions_alone(ranks: Ranks) -> None:
    """256 and 1, and on the other rank -256 and 0: bfloat16 has no 257, and float32 not the 2**-17 beside it.

    The policy says nothing of computation: gradients have the parameters' dtype until they are reduced.
    """
    for parameters, reduced, small, expected in (
        (torch.bfloat16, None, 0.0, 0.0),
        (torch.bfloat16, torch.float32, 0.0, 0.5),
        (torch.float32, None, 2.0**-17, 0.5),
        (torch.float32, torch.bfloat16, 0.0, 0.0),
        (torch.float32, torch.float64, 2.0**-17, 0.5 + 2.0**-18),
    ):
        of_ranks = [(256.0, 1.0 + small), (-256.0, 0.0)]
        gradients = [[torch.full((3,), value, dtype=parameters) for value in of_rank] for of_rank in of_ranks]
        got = ranks.run(mean_of_sums, gradients=gradients, policy=MixedPrecisionPolicy(reduce_dtype=reduced))
        means = [torch.full((3,), expected, dtype=parameters)] * 2
        assert_each(got, means, f"mean gradient of {parameters} parameters, reduced in {reduced}")
