"""Stages that hand on several tensors, of which some have no gradient, have the whole model's gradients, exactly."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.carrying import needs_no_gradient, train_carrying
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, cannot_run, placed
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors

ROWS = 2


def whole(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return integers(shape, torch.float64, seed=seed, low=-3, high=4)


@pytest.mark.ranks(3)
@pytest.mark.skipif(not needs_no_gradient(), reason="this torch wants a gradient of all that a stage hands on")
@pytest.mark.parametrize("schedule", RUNNERS)
def test_whole_numbers_and_what_is_ignored(ranks: Ranks, schedule: str) -> None:
    """What the next stage ignores has no gradient, and whole numbers have none; the others' are exact."""
    if reason := cannot_run(schedule, ranks.backend):
        pytest.skip(reason)
    count = ranks.world_size * (1 if schedule in SINGLE else 2)
    weights = [whole((3, 3), seed) for seed in range(count)]
    tables = [whole((4, 3), 20 + seed) for seed in range(count)]
    batch = 6 * ROWS
    x, target = whole((batch, 3), 40), whole((batch, 3), 41)
    tokens = torch.arange(batch) * 7 % 4
    given = {"weights": weights, "tables": tables, "x": x, "target": target, "tokens": tokens}
    got = ranks.run(train_carrying, schedule=schedule, microbatches=6, **given)
    leaves = [[value.clone().requires_grad_() for value in pair] for pair in zip(weights, tables, strict=True)]
    for step in (1, 2):
        hidden, now = step * x, tokens
        for weight, table in leaves:
            hidden = (hidden @ weight).abs() + functional.embedding(now, table)
            now = (now + 1) % 4
        (4 * hidden * target * (now[:, None] + 1)).sum().backward()
    expected: list[Tensors] = []
    for rank in range(ranks.world_size):
        own = placed(schedule, rank, ranks.world_size, count)
        ends = {"output": hidden.detach(), "tokens": now, "triple": 3 * hidden.detach()} if count - 1 in own else {}
        for index in own:
            for name, value in zip(("weight", "table"), leaves[index], strict=True):
                assert value.grad is not None
                ends[f"stage {index}, {name}"] = value.grad
        expected.append(ends)
    assert_same(got, expected)
