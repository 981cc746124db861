"""Tests of a user, with types. Not collected: they are read by type checkers alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_type

import torch

from pytest_gpuperf import Comparison, Context, GiB, Metric, Perf, Ranks, Resettable, Timing


def program(ctx: Context, width: int) -> torch.Tensor:
    return torch.ones(width, device=ctx.device) * ctx.rank


def test_results(ranks: Ranks) -> None:
    results = ranks.run(program, 4)
    assert_type(results, list[torch.Tensor])


def step(ctx: Context, *, numel: int) -> Callable[[], torch.Tensor]:
    x = torch.ones(numel, device=ctx.device)
    return lambda: x + 1


def test_speed(perf: Perf) -> None:
    timing = perf.measure(step, numel=perf.sized(GiB, smoke=8))
    assert_type(timing, Timing)
    assert_type(timing.busbw("all_reduce", GiB), Metric)
    raced = perf.compare(baseline=step, optimized=step, numel=8)
    assert_type(raced, Comparison)
    perf.check(time=timing.time, speedup=raced.speedup)
    Resettable(lambda: None, lambda: None)


def test_what_is_wrong_is_found(perf: Perf, ranks: Ranks) -> None:
    perf.check(time=1.0)  # type: ignore[arg-type]  # strict: without the types of the package nothing would be ignored
    ranks.run(3)  # type: ignore[arg-type]
