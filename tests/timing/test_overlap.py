"""Samples of three arms are taken there and back."""

import time
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context
from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.timing.compare import Tolerance, compare
from pytest_gpuperf.timing.overlap import overlap
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import Step
from tests.ranks.conftest import Call


def logged(ctx: Context) -> tuple[list[str], list[RankSamples]]:
    """Three arms that note who is asked for a sample."""
    log: list[str] = []

    def named(name: str, seconds: float) -> object:
        def program(ctx: Context) -> Step:
            def step() -> None:
                log.append(name)
                time.sleep(seconds)

            return step

        return program

    arms = [named("t", 3e-3), named("c", 2e-3), named("m", 2e-3)]
    samples = overlap(ctx, arms, {}, Sampling(budget=0.02, smoke=True))  # type: ignore[arg-type]
    return log, samples


def test_arms_are_sampled_there_and_back(call: Call) -> None:
    for log, samples in call(logged):
        assert "".join(log) == "tcmmct"
        assert [len(arm.seconds) for arm in samples] == [2, 2, 2]


def wrong_in_the_end(ctx: Context, of: str) -> str:
    """Whether this rank found an output wrong, as rank 1 does of the last one."""

    def program(ctx: Context) -> Step:
        return lambda: torch.ones(1)

    def verify(ctx: Context, output: Any, steps: int) -> None:
        assert steps == 1 or ctx.rank != 1, "wrong"

    sampling = Sampling(budget=0.01)
    try:
        if of == "overlap":
            overlap(ctx, [program, program], {}, sampling, verify)
        else:
            compare(ctx, program, program, {}, sampling, Tolerance(), verify)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("of", ["overlap", "comparison"])
def test_what_one_rank_finds_wrong_in_the_end_leaves_no_other_rank_waiting(call: Call, of: str) -> None:
    first, second = call(wrong_in_the_end, of)
    assert first == ""
    assert "wrong" in second
