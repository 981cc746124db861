"""Parameters that are averaged from time to time are those of a simulation of all ranks, exactly."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.compression.programs.local_sgd import PERIODS, WARMUP, Kind, trained
from suites.shared.comparison import assert_close
from suites.shared.inputs import rank_inputs

STEPS = 10


@pytest.mark.ranks(4)
@pytest.mark.parametrize("reloaded", [0, 5], ids=["as begun", "reloaded"])
@pytest.mark.parametrize("kind", ["periodic", "hierarchical"])
def test_averages_from_time_to_time(ranks: Ranks, kind: Kind, reloaded: int) -> None:
    start = torch.zeros(3, dtype=torch.float64)
    gradients = [rank_inputs(4, shape=(3,), dtype=torch.float64, seed=step + 1) for step in range(STEPS)]
    got = ranks.run(trained, kind=kind, start=start, gradients=gradients, reloaded=reloaded)
    for step, expected in enumerate(simulated(kind, start, gradients)):
        for rank, of_rank in enumerate(got):
            assert_close(of_rank[step], expected[rank], f"rank {rank}, step {step + 1}, parameter")


def simulated(kind: Kind, start: torch.Tensor, gradients: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """All ranks' parameters after each step; means of 2 and 4 of them are exact."""
    parameters = [start] * 4
    found = []
    for step, of_ranks in enumerate(gradients):
        parameters = [value - gradient for value, gradient in zip(parameters, of_ranks, strict=True)]
        size = averaging(kind, step)
        parameters = [
            torch.stack(parameters[rank // size * size : rank // size * size + size]).mean(0) for rank in range(4)
        ]
        found.append(parameters)
    return found


def averaging(kind: Kind, step: int) -> int:
    """How many neighbours average after the step: 1 if nobody does. Of several periods the longest counts."""
    if step < WARMUP:
        return 1
    if kind == "periodic":
        return 1 if (step - WARMUP) % 2 else 4
    return max([1, *(size for period, size in PERIODS.items() if step % period == 0)])
