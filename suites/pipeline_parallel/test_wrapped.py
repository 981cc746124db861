"""Pipelines that are replicated have the gradients of the whole batch, exactly, whatever wraps their stages."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, placed, votes
from suites.pipeline_parallel.programs.wrapped import Wrapper, train_wrapped
from suites.pipeline_parallel.reference.model import case, whole_model
from suites.shared.comparison import assert_same

MICROBATCHES, REPLICAS = 4, 2
WAYS: list[tuple[Wrapper, str]] = [
    *(("FSDP", schedule) for schedule in RUNNERS if schedule not in SINGLE),
    ("replicate", "1F1B"),
    ("replicate", "ZBVZeroBubble"),
    ("DDP", "Interleaved1F1B"),
    ("DDP", "LoopedBFS"),
]
"""DistributedDataParallel does not see the gradients of backwards that are split."""


@pytest.mark.ranks(4)
@pytest.mark.skipif(not votes(), reason="known to run since torch 2.12")
@pytest.mark.parametrize(("wrapper", "schedule"), WAYS)
def test_stages_that_are_wrapped(ranks: Ranks, wrapper: Wrapper, schedule: str) -> None:
    """Layers of three rows that two replicas share are cut unevenly; there are two steps where torch takes them."""
    check(ranks, wrapper, schedule, 1 if schedule in SINGLE else 2)


@pytest.mark.ranks(4)
@pytest.mark.skipif(not votes(), reason="known to run since torch 2.12")
@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"])
def test_more_stages_than_are_unsharded_at_a_time(ranks: Ranks, schedule: str) -> None:
    """Three at most: stages are sharded again between their microbatches, and keep their gradients."""
    check(ranks, "FSDP", schedule, 4)


def check(ranks: Ranks, wrapper: Wrapper, schedule: str, per_rank: int) -> None:
    degree = ranks.world_size // REPLICAS
    count = degree * per_rank
    whole = case(schedule, [[3], *[[3, 3]] * count], MICROBATCHES * REPLICAS, 2, "linear", seed=1)
    target = whole.target * MICROBATCHES * REPLICAS
    got = ranks.run(
        train_wrapped,
        schedule=schedule,
        wrapper=wrapper,
        stages=whole.stages,
        x=whole.x,
        target=target,
        microbatches=MICROBATCHES,
        replicas=REPLICAS,
    )
    for step in range(1, len(got[0]) + 1):
        expected = whole_model(whole._replace(x=step * whole.x))
        of_ranks = []
        for rank in range(ranks.world_size):
            own = tuple(f"stage {index}." for index in placed(schedule, rank % degree, degree, count))
            gradients = {name: value for name, value in expected.items() if name.endswith(" gradient")}
            of_ranks.append(
                {name.removesuffix(" gradient"): value for name, value in gradients.items() if name.startswith(own)}
            )
        assert_same([of_rank[step - 1] for of_rank in got], of_ranks, ordered=False)
