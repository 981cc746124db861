"""Samples of three arms are taken there and back."""

import time

from pytest_gpuperf import Context
from pytest_gpuperf.figures.timing import RankSamples
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
