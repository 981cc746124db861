"""A late rank changes no number, the others wait for it, and its own time names it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.shared.comparison import assert_unlike
from suites.shared.delays import DELAYS, Delay, moved_by
from suites.shared.step import Step, once, seconds_of_steps
from suites.shared.waiting import end_without, waited
from suites.stragglers.programs import late as programs
from suites.stragglers.reference import medians, share_that_all_pay

DELAY = 0.5
"""Seconds of a clock that delays move at once."""
STEPS = 2
HOLDS_UP = (Delay, "__call__")


def seconds_of(ctx: Context, program: Callable[..., Step[torch.Tensor]], late: int) -> list[float]:
    """Return how long each of two steps takes this rank, on a clock that only delays move."""
    with moved_by(DELAYS):
        return seconds_of_steps(ctx, program(ctx, late=late, delay=DELAY), STEPS)


def waiting(ctx: Context, program: Callable[..., Step[torch.Tensor]], late: int) -> list[bool]:
    """Return for each of two steps whether this rank waited for the late one."""
    return waited(ctx, program(ctx, late=late, delay=DELAY), STEPS, holds_up=HOLDS_UP, note=f"rank {late} is late")


def going_on(ctx: Context, program: Callable[..., Step[torch.Tensor]], late: int) -> None:
    """Take two steps that the others end before the late rank comes."""
    end_without(ctx, program(ctx, late=late, delay=DELAY), STEPS, holds_up=HOLDS_UP, note=f"rank {late} is alone")


def test_no_two_ranks_have_one_matrix() -> None:
    """Were they alike, a sum without the late rank's product would be that of another rank's twice."""
    assert_unlike({f"rank {rank}": programs.matrix(rank) for rank in range(4)})


def timing(*of_ranks: tuple[float, ...]) -> Any:
    """A stand-in for the Timing of steps that took each rank so many seconds, sample by sample.

    It has only the attributes that are read.
    """
    slowest = [max(sample) for sample in zip(*of_ranks, strict=True)]
    ranks = [SimpleNamespace(seconds=seconds) for seconds in of_ranks]
    clock = SimpleNamespace(clock="host")
    return SimpleNamespace(ranks=ranks, samples=slowest, median=statistics.median(slowest), time=clock)


def test_the_share_that_all_pay_is_of_what_the_late_rank_loses_by_itself() -> None:
    """Rank 1 is 4 s slower than the fastest one. Each step of all goes from 2 s to 5 s; one sample of each is odd."""
    alone = timing((2.0, 2.0, 90.0), (5.0, 50.0, 5.0), (1.0, 1.0, 1.0))
    assert medians(alone) == [2.0, 5.0, 1.0]
    even, held_up = timing((2.0, 2.0, 70.0), (1.0, 2.0, 2.0)), timing((5.0, 5.0, 0.1), (4.0, 5.0, 80.0))
    share = share_that_all_pay(even, held_up, alone, 1)
    assert (share.value, share.unit, share.samples, share.clock) == (3 / 4, "x", 3, "host")
    assert share_that_all_pay(even, held_up, alone, 0).value == 3 / 1
    assert share_that_all_pay(held_up, even, alone, 1).value == 1 / 100  # a step that is faster than without delay


def test_seconds_of_a_step_begin_when_all_ranks_are_there() -> None:
    """The clock is read between the barrier and the step, and at the step's end."""
    events: list[str] = []

    def clock() -> float:
        events.append("clock")
        return float(len(events))

    context = Context(rank=0, world_size=2, backend="gloo", device=torch.device("cpu"), seed=1)
    with (
        mock.patch.object(Context, "barrier", side_effect=lambda: events.append("barrier")),
        mock.patch("time.perf_counter", clock),
    ):
        taken = seconds_of_steps(context, lambda: events.append("step"), 2)
    assert events == ["barrier", "clock", "step", "clock"] * 2
    assert taken == [2.0, 2.0]


@pytest.mark.ranks(2, 3, 4)
def test_nothing_but_time_changes(ranks: Ranks) -> None:
    squares = [programs.matrix(rank) @ programs.matrix(rank) for rank in range(ranks.world_size)]
    for late in (None, 0, ranks.world_size - 1):
        for rank, got in enumerate(ranks.run(once, programs.work, late=late, delay=0.001)):
            assert torch.equal(got, squares[rank]), f"rank {rank}, late {late}"
        for rank, got in enumerate(ranks.run(once, programs.work_then_sum, late=late, delay=0.001)):
            assert torch.equal(got, torch.stack(squares).sum(0)), f"rank {rank}, late {late}"


@pytest.mark.ranks(2, 3, 4)
def test_who_is_late_is_named_by_its_own_time(ranks: Ranks) -> None:
    for late in range(ranks.world_size):
        alone = ranks.run(seconds_of, programs.work, late)
        assert alone == [[DELAY * (rank == late)] * STEPS for rank in range(ranks.world_size)], f"rank {late} is late"
        ranks.run(going_on, programs.work, late)


@pytest.mark.ranks(2, 3, 4)
def test_all_wait_for_the_late_one(ranks: Ranks) -> None:
    for late in (0, ranks.world_size - 1):
        found = ranks.run(waiting, programs.work_then_sum, late)
        assert found == [[True] * STEPS] * ranks.world_size, f"a rank did not wait for rank {late}"


def test_a_delay_lasts_its_seconds() -> None:
    context = Context(rank=0, world_size=1, backend="gloo", device=torch.device("cpu"), seed=1)
    began = time.perf_counter()
    Delay(context, 0.02)()
    assert time.perf_counter() - began >= 0.02


def test_a_delay_of_a_gpu_has_the_cycles_of_its_seconds() -> None:
    """The 20 million cycles that are tried take 10 ms here, so 5 ms have half as many."""
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _: 10.0)
    slept: list[int] = []
    gpu = Context(rank=0, world_size=1, backend="nccl", device=torch.device("cuda"), seed=1)
    with (
        mock.patch.object(torch.cuda, "_sleep", slept.append),
        mock.patch.object(torch.cuda, "Event", return_value=event),
    ):
        wait = Delay(gpu, 0.005)
        slept.clear()  # what was tried
        wait()
    assert slept == [10_000_000]
