"""Only the first step of a test is warmed up until it is steady: the device is warm for what comes after."""

import time
from collections.abc import Callable

import torch

from pytest_gpuperf import Context
from pytest_gpuperf.timing.compare import Tolerance, compare
from pytest_gpuperf.timing.overlap import overlap
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.trial import trial
from tests.ranks.conftest import Call

SAMPLING = Sampling(budget=0.05, samples=10)
SECONDS = 2e-3
LEAST = 10
"""How many steps fewer: a cold device takes 25 of them, and fewer if a busy machine lets them sleep for longer."""

Program = Callable[[Context], Callable[[], torch.Tensor]]


def counted(counts: list[int]) -> Program:
    """A program whose steps are counted at the end of the list."""
    counts.append(0)
    place = len(counts) - 1

    def program(ctx: Context) -> Callable[[], torch.Tensor]:
        def step() -> torch.Tensor:
            counts[place] += 1
            time.sleep(SECONDS)
            return torch.ones(1)

        return step

    return program


def of_comparison(ctx: Context) -> list[int]:
    counts: list[int] = []
    compare(ctx, counted(counts), counted(counts), {}, SAMPLING, Tolerance())
    return counts


def of_overlap(ctx: Context) -> list[int]:
    counts: list[int] = []
    overlap(ctx, [counted(counts) for _ in range(3)], {}, SAMPLING)
    return counts


def of_search(ctx: Context) -> list[int]:
    counts: list[int] = []
    for warm in (False, True):
        trial(ctx, counted(counts), {}, SAMPLING, None, None, warm)
    return counts


def assert_others_are_warm(counts: list[int]) -> None:
    first, *others = counts
    assert all(first - other >= LEAST for other in others), counts


def test_the_second_arm_of_a_comparison_is_warm(call: Call) -> None:
    for counts in call(of_comparison):
        assert_others_are_warm(counts)


def test_the_parts_of_an_overlap_are_warm(call: Call) -> None:
    for counts in call(of_overlap):
        assert_others_are_warm(counts)


def test_the_second_configuration_of_a_search_is_warm(call: Call) -> None:
    for counts in call(of_search):
        assert_others_are_warm(counts)
