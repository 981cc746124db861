"""Ranks that end early, parameters that some steps leave out, and tensors that are ignored: simulated, exactly."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.data_parallel.programs.uneven import (
    DECAY,
    IGNORED,
    Uneven,
    gradients,
    ignoring,
    joined,
    joined_optimizer,
    uses,
)
from suites.shared.comparison import assert_same
from suites.shared.step import Tensors

PARAMETERS = "always", "at times"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("lengths", [[1, 4], [4, 2], [2, 4]], ids=str)
def test_ranks_that_end_early(ranks: Ranks, lengths: list[int]) -> None:
    """The highest rank that still trains sends its buffer before each step, and everything at the end."""
    got = ranks.run(joined, lengths=lengths)
    expected = simulated(lengths)
    for rank, told in enumerate(got):
        assert len(told) == lengths[rank] + 1
        for step in range(lengths[rank]):
            assert_same([told[step]], [expected[step][rank]], ordered=False)
        assert_same([told[-1]], [expected[-1][lengths.index(max(lengths))]], ordered=False)


def simulated(lengths: list[int]) -> list[list[Tensors]]:
    """What each rank has after each step; a rank that has ended keeps what it has."""
    held = [Uneven(0).now() for _ in lengths]
    for rank in range(len(lengths)):
        held[rank]["calls"] = Uneven(0).now()["calls"]  # sent when the module is wrapped
    found = []
    for step in range(max(lengths)):
        active = [rank for rank, length in enumerate(lengths) if step < length]
        used = {"always": True, "at times": any(uses(rank, step) for rank in active)}
        before = held[max(active)]
        now = {"calls": before["calls"] + 1}
        for name in PARAMETERS:
            now[name] = before[name]
            if used[name]:
                own = [rank for rank in active if name == "always" or uses(rank, step)]
                total = torch.stack([gradients(rank, step, len(lengths))[name] for rank in own]).sum(0)
                now[name] = before[name] - (total / len(lengths) + DECAY * before[name])
        for rank in active:
            held[rank] = now | {"calls": now["calls"] + rank}
        found.append(list(held))
    return found


@pytest.mark.ranks(2)
def test_tensors_that_are_ignored(ranks: Ranks) -> None:
    """They stay as each rank has them: neither sent, nor averaged."""
    steps = 2
    got = ranks.run(ignoring, steps=steps)
    for rank, told in enumerate(got):
        held = {
            f"{part}.{name.replace(' ', '_')}": value
            for part in ("kept", "shared")
            for name, value in Uneven(0).now().items()
        }
        held |= {name: Uneven(rank).now()[name.partition(".")[2]] for name in IGNORED}
        assert_same([told[0]], [held], ordered=False)
        for step in range(steps):
            of_ranks = [gradients(other, step, 2) for other in range(2)]
            for name in held:
                part, _, own = name.partition(".")
                if own == "calls":
                    held[name] = held[name] + 1
                    continue
                those = [rank] if name in IGNORED else range(2)
                mean = torch.stack([of_ranks[other][own.replace("_", " ")] for other in those]).mean(0)
                held[name] = held[name] - mean * (2 if part == "shared" else 1)
            assert_same([told[step + 1]], [held], ordered=False)


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("lengths", "buckets"), [([1, 3, 2], False), ([3, 2, 1], True)], ids=["one by one", "in buckets"]
)
def test_optimizers_of_ranks_that_end_early(ranks: Ranks, lengths: list[int], buckets: bool) -> None:
    """A rank that has ended goes on updating its share of the parameters, and all have what the others train."""
    held = {name: value for name, value in Uneven(0).now().items() if name != "calls"}
    momentum = {name: torch.zeros_like(value) for name, value in held.items()}
    steps = []
    for step in range(max(lengths)):
        active = [rank for rank, length in enumerate(lengths) if step < length]
        for name in held:
            total = torch.stack([gradients(rank, step, 3)[name] for rank in active]).sum(0)
            momentum[name] = momentum[name] / 2 + total / 3
            held = held | {name: held[name] - momentum[name]}
        steps.append(held)
    for rank, told in enumerate(ranks.run(joined_optimizer, lengths=lengths, buckets=buckets)):
        got = [{name: value for name, value in now.items() if name != "calls"} for now in told]
        assert_same(got, [*steps[: lengths[rank]], steps[-1]], ordered=False)
