"""A weight of two stages of a rank has the gradient of both uses, exactly."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, placed
from suites.pipeline_parallel.programs.tied import train_tied
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import gradient_of

MICROBATCHES = 6


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", [schedule for schedule in RUNNERS if schedule not in SINGLE])
def test_a_weight_of_two_stages(ranks: Ranks, schedule: str) -> None:
    """In V-shaped schedules the first and the last stage share it, as language models' embeddings do."""
    weights = [integers((3, 3), torch.float64, seed=seed, low=-3, high=4) for seed in range(ranks.world_size)]
    x, target = (integers((2 * MICROBATCHES, 3), torch.float64, seed=seed, low=-3, high=4) for seed in (40, 41))
    given = {"schedule": schedule, "weights": weights, "x": x, "target": target}
    got = ranks.run(train_tied, microbatches=MICROBATCHES, **given)
    leaves = [weight.clone().requires_grad_() for weight in weights]
    count = 2 * ranks.world_size
    holders = {
        index: rank for rank in range(ranks.world_size) for index in placed(schedule, rank, ranks.world_size, count)
    }
    for step in (1, 2):
        hidden = step * x
        for index in range(count):
            hidden = (hidden @ leaves[holders[index]]).abs()
        (hidden * target).sum().backward()
    assert_same(got, [{"gradient": gradient_of(leaf)} for leaf in leaves])
