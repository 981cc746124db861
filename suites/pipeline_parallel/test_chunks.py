"""A batch that is cut along its second dimension gives the gradients and the output of the whole batch, exactly."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.chunks import (
    Gated,
    chunks_of_a_mask,
    loss_along_second,
    takes_chunks,
    train_chunks,
)
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, Layers, cannot_run, placed
from suites.shared.comparison import assert_each, assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors, gradient_of

DTYPE = torch.float64
LENGTH, BATCH, WIDTH = 3, 4, 2
TIMES = 2
"""The loss's factor, which schedules pass on."""


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", [schedule for schedule in RUNNERS if takes_chunks(schedule)])
def test_cut_along_the_second_dimension(ranks: Ranks, schedule: str) -> None:
    check(ranks, schedule, replicas=1)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("schedule", SINGLE)
def test_replicated_stages(ranks: Ranks, schedule: str) -> None:
    """Gradients are the means of both replicas', whichever backward of a stage is its last."""
    check(ranks, schedule, replicas=2)


@pytest.mark.ranks(1)
def test_a_mask_that_is_cut_unevenly(ranks: Ranks) -> None:
    """The chunks get two sequences, one, and one. Each sequence keeps the mask of its length, and the one of all."""
    lengths, most = torch.tensor([1, 4, 2, 3]), 5
    (got,) = ranks.run(chunks_of_a_mask, lengths=lengths, most=most, chunks=3)
    whole = (torch.arange(most) < lengths[:, None])[:, None, None].expand(-1, -1, most, -1)
    shared = torch.ones(most, most, dtype=torch.bool).tril().expand(4, 1, -1, -1)
    assert_each([torch.cat(got)], [torch.cat([whole, shared], 1)], "mask")
    assert [len(chunk) for chunk in got] == [2, 1, 1]


def check(ranks: Ranks, schedule: str, *, replicas: int) -> None:
    if reason := cannot_run(schedule, ranks.backend):
        pytest.skip(reason)
    degree = ranks.world_size // replicas
    stages = layers_of(degree * (1 if schedule in SINGLE else 2))
    batch = BATCH * replicas
    x = integers((LENGTH, batch, WIDTH), DTYPE, seed=100, low=-3, high=3)
    gate = integers((LENGTH, batch, 1), DTYPE, seed=101, low=1, high=3)
    target = replicas * integers((batch, LENGTH, WIDTH), DTYPE, seed=102, low=-3, high=3)
    arguments = {"schedule": schedule, "stages": stages, "x": x, "gate": gate, "target": target}
    got = ranks.run(train_chunks, microbatches=BATCH, times=TIMES, replicas=replicas, **arguments)
    whole = whole_batch_of(stages, x, gate, target / replicas)
    expected = []
    for rank in range(ranks.world_size):
        replica, place = divmod(rank, degree)
        own = placed(schedule, place, degree, len(stages))
        names = [name for name in whole if name.startswith(tuple(f"stage {index}," for index in own))]
        of_rank = {name: whole[name] for name in names}
        if len(stages) - 1 in own:
            of_rank["output"] = whole["output"].chunk(replicas, 1)[replica]
        expected.append(of_rank)
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
    loss_along_second(x, target, times=TIMES).backward()
    gradients = {
        f"stage {index}, {name} gradient": gradient_of(value)
        for index, module in enumerate(modules)
        for name, value in module.named_parameters()
    }
    return gradients | {"output": x.detach()}
