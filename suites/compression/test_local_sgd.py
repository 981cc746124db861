"""Parameters that are averaged from time to time are those of a simulation of all ranks, exactly."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.compression.programs.local_sgd import MOMENTUM, PERIODS, WARMUP, Kind, averaged, trained
from suites.shared.comparison import assert_close, assert_same
from suites.shared.inputs import integers, rank_inputs

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


@pytest.mark.ranks(3)
@pytest.mark.parametrize("kind", ["groups", "parameters"])
def test_parameters_of_several_shapes_and_dtypes(ranks: Ranks, kind: Literal["groups", "parameters"]) -> None:
    """Each is averaged in its place, but for one without a gradient, and those of a rank outside of the group."""
    shapes = [((2,), torch.float64), ((3, 2), torch.float64), ((4,), torch.float32), ((2, 1, 2), torch.float64)]
    given = [
        [2 * integers(shape, dtype, seed=8 * rank + place) for place, (shape, dtype) in enumerate(shapes)]
        for rank in range(3)
    ]
    mean = [given[0][0], *(torch.stack(each).mean(0) for each in zip(given[0][1:], given[1][1:], strict=True))]
    expected = [mean, [given[1][0], *mean[1:]], given[2]]
    got = ranks.run(averaged, given=given, kind=kind)
    assert_same(got, [{str(place): value for place, value in enumerate(values)} for values in expected])


def simulated(kind: Kind, start: torch.Tensor, gradients: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """All ranks' parameters after each step; means of 2 and 4 of them are exact. Momenta are each rank's own."""
    parameters = [start] * 4
    momenta = [torch.zeros_like(start)] * 4
    found = []
    for step, of_ranks in enumerate(gradients):
        momenta = [MOMENTUM * value + gradient for value, gradient in zip(momenta, of_ranks, strict=True)]
        parameters = [value - momentum for value, momentum in zip(parameters, momenta, strict=True)]
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
