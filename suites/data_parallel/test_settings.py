"""DistributedDataParallel trains as one device does with each of its arguments, exactly; some ranks end early."""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Ranks
from suites.data_parallel.programs.settings import (
    SETTINGS,
    buffers,
    configured,
    stopped,
)
from suites.shared.comparison import assert_same
from suites.shared.problems import Problem
from suites.shared.references import whole_batch
from suites.shared.strategies import seeds
from suites.shared.training import trajectory


@pytest.mark.ranks(2)
@pytest.mark.examples(0.04)  # numbers have little to do with settings: a few seeds
@pytest.mark.parametrize("setting", SETTINGS)
@given(seed=seeds)
def test_as_one_device(ranks: Ranks, setting: str, seed: int) -> None:
    chosen = SETTINGS[setting]
    if chosen.lacking:
        pytest.skip(f"torch {torch.__version__} has no {chosen.needs} of DistributedDataParallel")
    problem = Problem(world_size=2, seed=seed, outputs=3, microbatches=2, steps=3)
    got = ranks.run(trajectory, configured, problem=problem, setting=setting)
    assert_same([packed.unpacked() for packed in got], whole_batch(problem))


@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated")
@pytest.mark.parametrize("argument", ["forward_sync_buffers", "broadcast_buffers"])
@pytest.mark.parametrize("sync", [True, False])
def test_buffers(ranks: Ranks, argument: str, sync: bool) -> None:
    """Rank 0's are sent before each forward, or none; at first they are sent unless it is the older argument."""
    if argument not in inspect.signature(DistributedDataParallel).parameters:
        pytest.skip(f"torch {torch.__version__} has no {argument} of DistributedDataParallel")
    steps = 3
    own = not sync and argument == "broadcast_buffers"
    expected = []
    for rank in range(2):
        start = 10 * rank if own else 0
        each = [start + (1 + rank) * step for step in range(1, steps + 1)]
        expected.append([step + rank for step in range(1, steps + 1)] if sync else each)
    got = ranks.run(buffers, argument=argument, sync=sync, steps=steps)
    assert got == expected, f"buffers of each rank after each step: {got}, not {expected}"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("method", [True, False], ids=["its method", "for several"])
@pytest.mark.parametrize(
    ("lengths", "enable", "throw", "taken"),
    [([3, 1], True, True, [1, 1]), ([2, 2], True, False, [2, 2]), ([2, 2], False, True, [2, 2])],
    ids=["one has fewer", "as many", "as many, and not looked at"],
)
def test_all_stop_with_the_first(
    ranks: Ranks, lengths: list[int], enable: bool, throw: bool, taken: list[int], method: bool
) -> None:
    problem = Problem(world_size=2, seed=1, steps=3)
    got = ranks.run(stopped, problem=problem, lengths=lengths, enable=enable, throw=throw, method=method)
    assert got == taken, f"steps of each rank: {got}, not {taken}"
