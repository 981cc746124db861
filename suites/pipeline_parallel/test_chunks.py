"""A batch that is cut along its second dimension gives the gradients and the output of the whole batch, exactly."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.chunks import Gated, loss_along_second, takes_chunks, train_chunks
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, Layers, cannot_run, placed
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors, gradient_of

DTYPE = torch.float64
LENGTH, BATCH, WIDTH = 3, 4, 2


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", [schedule for schedule in RUNNERS if takes_chunks(schedule)])
def test_cut_along_the_second_dimension(ranks: Ranks, schedule: str) -> None:
    if reason := cannot_run(schedule, ranks.backend):
        pytest.skip(reason)
    stages = layers_of(ranks.world_size * (1 if schedule in SINGLE else 2))
    x = integers((LENGTH, BATCH, WIDTH), DTYPE, seed=100, low=-3, high=3)
    gate = integers((LENGTH, BATCH, 1), DTYPE, seed=101, low=1, high=3)
    target = integers((BATCH, LENGTH, WIDTH), DTYPE, seed=102, low=-3, high=3)
    got = ranks.run(train_chunks, schedule=schedule, stages=stages, microbatches=BATCH, x=x, gate=gate, target=target)
    whole = whole_batch_of(stages, x, gate, target)
    expected = []
    for rank in range(ranks.world_size):
        own = placed(schedule, rank, ranks.world_size, len(stages))
        names = [name for name in whole if name.startswith(tuple(f"stage {index}," for index in own))]
        expected.append({name: whole[name] for name in [*names, *["output"] * (len(stages) - 1 in own)]})
    assert_same(got, expected, ordered=False)


def layers_of(number: int) -> list[Layers]:
    """Small weights of their own for each stage."""
    return [
        [
            (
                integers((WIDTH, WIDTH), DTYPE, seed=2 * stage, low=-2, high=2),
                integers((WIDTH,), DTYPE, seed=2 * stage + 1),
            )
        ]
        for stage in range(number)
    ]


def whole_batch_of(stages: list[Layers], x: torch.Tensor, gate: torch.Tensor, target: torch.Tensor) -> Tensors:
    """All stages one after the other in this process, with the whole batch."""
    modules = [Gated(layers, torch.device("cpu")) for layers in stages]
    for module in modules:
        x = module(x, gate=gate)
    loss_along_second(x, target).backward()
    gradients = {
        f"stage {index}, {name} gradient": gradient_of(value)
        for index, module in enumerate(modules)
        for name, value in module.named_parameters()
    }
    return gradients | {"output": x.detach()}
