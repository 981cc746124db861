"""Weights' gradients that stages make later, when torch says so, are those of the whole model, exactly."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.deferred import train_deferred
from suites.pipeline_parallel.programs.stages import SINGLE, SPLITTING, cannot_run, placed
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors

MICROBATCHES = 6


@pytest.mark.ranks(3)
@pytest.mark.parametrize("schedule", ["1F1B", *SPLITTING])
def test_gradients_that_are_made_later(ranks: Ranks, schedule: str) -> None:
    """Each time those of one microbatch are made."""
    if reason := cannot_run(schedule, ranks.backend):
        pytest.skip(reason)
    count = 3 if schedule in SINGLE else 6
    weights = [integers((3, 3), torch.float64, seed=seed, low=-3, high=4) for seed in range(count)]
    x, target = (integers((2 * MICROBATCHES, 3), torch.float64, seed=seed, low=-3, high=4) for seed in (40, 41))
    got = ranks.run(train_deferred, schedule=schedule, weights=weights, x=x, target=target, microbatches=MICROBATCHES)
    leaves = [weight.clone().requires_grad_() for weight in weights]
    for step in (1, 2):
        hidden = step * x
        for weight in leaves:
            hidden = (hidden @ weight).abs()
        (hidden * target).sum().backward()
    made = torch.ones(2 * MICROBATCHES, dtype=torch.int64)
    expected: list[Tensors] = []
    for rank in range(ranks.world_size):
        own = placed(schedule, rank, ranks.world_size, count)
        gradients = {f"stage {index}": leaves[index].grad for index in own}
        of_rank = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        expected.append(of_rank | {f"stage {index}, made": made for index in own})
    assert_same(got, expected)
