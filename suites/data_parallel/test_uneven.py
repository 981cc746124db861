"""Ranks that end early, parameters that some steps leave out, and tensors that are ignored: simulated, exactly."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.data_parallel.programs.uneven import DECAY, IGNORED, Uneven, gradients, ignoring, joined, uses
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
