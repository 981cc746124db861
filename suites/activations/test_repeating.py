"""Functions run as often as their checkpoints say, and draw the same random numbers again, or others."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.utils import checkpoint

from pytest_gpuperf import Ranks
from suites.activations.programs.repeating import (
    CALLS,
    backward_again,
    draws,
    hooked,
    runs_after_the_last_saved,
    runs_in_segments,
    sequence,
    with_a_constant,
)
from suites.shared.comparison import assert_close

pytestmark = pytest.mark.ranks(1)


@pytest.mark.parametrize("preserve", [True, False], ids=["generator restored", "generator left"])
def test_random_numbers(ranks: Ranks, preserve: bool) -> None:
    """The run in backward draws forward's number again, or the generator's next one."""
    (numbers,) = ranks.run(sequence, numbers=3, seed=1)
    (told,) = ranks.run(draws, preserve=preserve, seed=1)
    assert list(told) == list(CALLS)
    for way, got in told.items():
        assert_close(got, numbers[[0, 0, 1]] if preserve else numbers, way)


def test_runs_in_segments(ranks: Ranks) -> None:
    """Three segments of seven functions have two each, and the last one has the rest and keeps everything."""
    values = [1]
    for added in range(7):
        values.append(values[-1] ** 2 + added)
    expected = torch.full((2,), math.prod(2 * value for value in values[:-1]), dtype=torch.float64)
    for listed, reentrant in itertools.product((False, True), repeat=2):
        where = f"listed {listed}, reentrant {reentrant}"
        ((runs, gradient),) = ranks.run(runs_in_segments, functions=7, segments=3, listed=listed, reentrant=reentrant)
        assert runs == [2, 2, 2, 2, 1, 1, 1], f"{where}: functions have run {runs} times"
        assert_close(gradient, expected, f"{where}, input gradient")


def test_recomputation_stops_early(ranks: Ranks) -> None:
    """An operation after the last saved tensor runs once; the context overrides the argument, while it lasts."""
    (told,) = ranks.run(runs_after_the_last_saved)
    expected = {"default": 1, "argument": 2, "context": 2, "context over argument": 1, "context over argument, off": 2}
    assert told == {**expected, "default, afterwards": 1}


def test_each_backward_computes_again(ranks: Ranks) -> None:
    """Each half of 1 to 4 has a backward, squares first, then cubes; the squares have a second one."""
    ((runs, gradient),) = ranks.run(backward_again, grouped=False)
    assert runs == 4, f"the function has run {runs} times, expected one forward and three backwards"
    assert_close(gradient, torch.tensor([4.0, 8.0, 27.0, 48.0]), "input gradient")


@pytest.mark.skipif(
    not hasattr(checkpoint, "GraphExecGroup"), reason=f"torch {torch.__version__} has no groups of backwards"
)
def test_backwards_of_a_group_compute_once(ranks: Ranks) -> None:
    ((runs, gradient),) = ranks.run(backward_again, grouped=True)
    assert runs == 2, f"the function has run {runs} times, expected one forward and one backward"
    assert_close(gradient, torch.tensor([2.0, 4.0, 27.0, 48.0]), "input gradient")


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_a_result_that_is_constant(ranks: Ranks, reentrant: bool) -> None:
    (gradient,) = ranks.run(with_a_constant, reentrant=reentrant)
    assert_close(gradient, torch.tensor([19.0, 23.0, 27.0]), "input gradient")


def test_hooks_of_several_tensors(ranks: Ranks) -> None:
    """One hook gets the first gradient of each backward, the other gets all; gradients are those of 2, 3, 5 and 7."""
    (told,) = ranks.run(hooked)
    of_all = [gradients for mode, gradients in told if mode == "all"]
    assert of_all == [[3.0, 9.0, None, 3.0], [6.0, 4.0, None, None], [3.0, None, None, None]]
    first = [gradients for mode, gradients in told if mode == "any"]
    possible = [{3.0, 9.0}, {6.0, 4.0}, {3.0}]
    assert len(first) == len(possible), f"{len(first)} calls of the other hook in three backwards"
    assert all(gradient in values for (gradient,), values in zip(first, possible, strict=True)), f"it was told {first}"
    modes = [mode for mode, _ in told[:4]]
    assert modes == ["any", "all"] * 2, f"a first gradient of two or three came after all of them: {modes}"
