"""Ranks that run several stages each, sharded or replicated within every stage, train as one device does, exactly."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from pytest_gpuperf import Ranks
from suites.hybrid.programs.chunks import PIPELINES, PLACES, SCHEDULES, WIDTH, cannot_run, train_chunks
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors

DTYPE = torch.float64
MICROBATCHES, ROWS, STEPS = 4, 2, 2
"""Microbatches of each pipeline, their rows, and steps: a second one finds what the first one has left behind."""

Stages = list[tuple[torch.Tensor, torch.Tensor]]
Batches = list[tuple[torch.Tensor, torch.Tensor]]


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("schedule", "way", "reshard"),
    [
        ("Interleaved1F1B", "sharded", True),
        ("Interleaved1F1B", "replicated", False),
        ("InterleavedZeroBubble", "sharded", False),
        ("ZBVZeroBubble", "sharded", False),
    ],
)
def test_several_stages_on_a_rank(ranks: Ranks, schedule: str, way: str, reshard: bool) -> None:
    """Weights are at most 2 after a step, so that float64 holds all products of eight stages."""
    if cannot_run(schedule, ranks.backend):
        pytest.skip(f"{schedule} of torch {torch.__version__} sends from a rank to itself, which gloo cannot")
    if way == "replicated" and not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip(f"torch {torch.__version__} has no such form of DistributedDataParallel")
    count = SCHEDULES[schedule].stages
    stages = [
        (
            integers((WIDTH, WIDTH), DTYPE, seed=2 * index, low=-1, high=1),
            integers((WIDTH,), DTYPE, seed=2 * index + 1, low=-1, high=1),
        )
        for index in range(count)
    ]
    shape = (STEPS, PIPELINES * MICROBATCHES * ROWS, WIDTH)
    x, target = (integers(shape, DTYPE, seed=seed, low=-2, high=2) for seed in (100, 101))
    batches = list(zip(x, target, strict=True))
    got = ranks.run(
        train_chunks,
        schedule=schedule,
        way=way,
        reshard=reshard,
        microbatches=MICROBATCHES,
        stages=stages,
        batches=batches,
    )
    of_steps = alone(stages, batches)
    for told in got:
        # As many as torch fetches ahead, but for the first step, which finds out what stages hand on.
        _, most = (int(of_step.pop("most gathered")) for of_step in told)
        assert reshard or most == min(3, SCHEDULES[schedule].of_place), f"{most} stages gathered at once"
    for step, whole in enumerate(of_steps):
        assert_same([told[step] for told in got], [held(whole, schedule, rank) for rank in range(4)], ordered=False)


def alone(stages: Stages, batches: Batches) -> list[Tensors]:
    """All stages and rows in this process: the mean over pipelines and microbatches of their sums of losses."""
    parameters: Tensors = {}
    for index, (weight, scale) in enumerate(stages):
        parameters |= {f"stage {index}.layer.weight": weight, f"stage {index}.scale": scale}
    told = []
    for x, target in batches:
        leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        output = x
        for index in range(len(stages)):
            product = output @ leaves[f"stage {index}.layer.weight"].T
            output = output + product * leaves[f"stage {index}.scale"]
        loss = (output * target).sum() / (PIPELINES * MICROBATCHES)
        gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        parameters = {name: value - gradients[name].sign() for name, value in parameters.items()}
        told.append(parameters | {f"{name} gradient": value for name, value in gradients.items()})
        told[-1]["output"] = output.detach()
    return told


def held(whole: Tensors, schedule: str, rank: int) -> Tensors:
    """What a rank has of all stages, and that it has nothing gathered."""
    pipeline, place = divmod(rank, PLACES)
    of = SCHEDULES[schedule]
    own = [f"stage {index}." for index in of.of(place)]
    results = {name: value for name, value in whole.items() if any(name.startswith(stage) for stage in own)}
    if of.stages - 1 in of.of(place):
        results["output"] = whole["output"].chunk(PIPELINES)[pipeline]
    return results | {"gathered": torch.tensor(0)}
