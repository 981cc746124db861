"""A communicator sums right however it was made, the first time and later, and after others were taken down."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Ranks
from suites.communicators import programs
from suites.shared.comparison import assert_unlike
from suites.shared.noted_calls import noted_groups

STAGES = ["make", "first use", "next use", "destroy"]


def check(ranks: Ranks, making: programs.Making) -> None:
    """Makes three communicators one after the other."""
    for rank, (seconds, sums) in enumerate(ranks.run(programs.lives, making=making, number=3, seed=1)):
        assert {name: len(taken) for name, taken in seconds.items()} == dict.fromkeys(STAGES, 3)
        assert all(taken > 0 for of_stage in seconds.values() for taken in of_stage)
        for use, got in enumerate(sums):
            parts = [programs.given(other, 1 + use // 2) for other in range(ranks.world_size)]
            assert torch.equal(got, torch.stack(parts).sum(0)), f"rank {rank}, use {use + 1}"


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("making", [programs.lazily, programs.eagerly], ids=["lazily", "eagerly"])
def test_new_groups(ranks: Ranks, making: programs.Making) -> None:
    check(ranks, making)


@pytest.mark.ranks(2, 4, 8, device="cuda")  # gloo splits nothing
def test_split_groups(ranks: Ranks) -> None:
    check(ranks, programs.split)


def own_groups(ctx: Context, *, making: programs.Making) -> list[bool]:
    """Whether each use was one of the communicator that was made last."""
    made = []

    def note(ctx: Context) -> dist.ProcessGroup:
        made.append(making(ctx))
        return made[-1]

    with noted_groups("all_reduce") as called:
        programs.lives(ctx, making=note, number=2, seed=1)
    return [used is group for used, group in zip(called, (each for each in made for _ in range(2)), strict=True)]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("making", [programs.lazily, programs.eagerly], ids=["lazily", "eagerly"])
def test_each_use_is_of_the_communicator_that_was_made(ranks: Ranks, making: programs.Making) -> None:
    """The default group would give the same sums, in another time."""
    assert ranks.run(own_groups, making=making) == [[True] * 4] * 2


LATE = 0.05  # seconds, so that a rank that does not wait for the last one is sure to be earlier


def begun_together(ctx: Context, *, number: int) -> list[bool]:
    """Return for each communicator whether its first use was timed from when the last rank had come to it.

    The last rank goes on late from making each of them.
    """
    made, found = 0, list[bool]()

    def key() -> str:
        return f"the last rank has made communicator {made}"

    def then_late(ctx: Context) -> dist.ProcessGroup:
        nonlocal made
        group = programs.eagerly(ctx)
        made += 1
        if ctx.rank == ctx.world_size - 1:
            time.sleep(LATE)  # not a wait for an event: the lateness is what the test is about
            ctx.store.set(key(), "yes")
        return group

    def clock() -> float:
        found.append(made > 0 and ctx.store.check([key()]))
        return 0.0

    with mock.patch("time.perf_counter", clock):
        programs.lives(ctx, making=then_late, number=number, seed=1)
    stages = len(found) // number  # readings: a begin and an end of each stage
    assert stages == 8, f"the clock was read {len(found)} times in {number} lives"
    return found[2::stages]


@pytest.mark.ranks(2)
def test_a_stage_is_not_charged_for_a_rank_that_is_late_before_it(ranks: Ranks) -> None:
    assert ranks.run(begun_together, number=2) == [[True] * 2] * 2, "first uses hold what the last rank was late before"


def told_seconds(ctx: Context, *, number: int) -> programs.Lives:
    """What each stage is charged with on a clock that the test moves: all that is done lasts another time."""
    now = 0.0

    def clock() -> float:
        return now

    def lasting(original: Callable[..., Any], durations: Iterator[float]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal now
            now += next(durations)
            return original(*args, **kwargs)

        return called

    making = lasting(programs.eagerly, itertools.count(100, 100))
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("time.perf_counter", clock))
        for owner, name, durations in (
            (dist, "all_reduce", itertools.count(1)),
            (dist, "destroy_process_group", itertools.count(1000, 1000)),
            (torch, "randint", itertools.repeat(10_000)),  # draws what is summed
            (Context, "barrier", itertools.repeat(100_000)),
        ):
            stack.enter_context(mock.patch.object(owner, name, lasting(getattr(owner, name), durations)))
        seconds, _ = programs.lives(ctx, making=making, number=number, seed=1)
    return seconds


@pytest.mark.ranks(2)
def test_a_stage_is_charged_with_nothing_else(ranks: Ranks) -> None:
    """Neither the stage before, nor drawing what is summed, nor waiting for the other ranks."""
    expected = {"make": [100, 200], "first use": [1, 3], "next use": [2, 4], "destroy": [1000, 2000]}
    assert ranks.run(told_seconds, number=2) == [expected] * 2


def test_a_stage_takes_as_long_as_its_slowest_rank() -> None:
    """The slowest rank of each communicator counts, whichever rank that is."""
    told = [
        {"make": [1.0, 5.0, 2.0], "destroy": [7.0, 7.0, 9.0]},
        {"make": [3.0, 4.0, 6.0], "destroy": [8.0, 6.0, 8.0]},
    ]
    assert programs.of_slowest(told) == {"make": [3.0, 5.0, 6.0], "destroy": [8.0, 7.0, 9.0]}


def test_no_two_ranks_or_lives_add_the_same() -> None:
    """Were they alike, a sum of the rank's own numbers, or the sum of the life before, would be right."""
    assert_unlike({f"rank {rank}, seed {seed}": programs.given(rank, seed) for rank in range(3) for seed in range(3)})


def open_files(ctx: Context, *, making: programs.Making, number: int) -> list[int]:
    """How many files and sockets the rank has open after each communicator."""
    from pathlib import Path

    counts = []
    for life in range(number):
        programs.lives(ctx, making=making, number=1, seed=life)
        ctx.barrier()
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    return counts


@pytest.mark.ranks(2)
def test_what_is_taken_down_leaves_no_files(ranks: Ranks) -> None:
    for rank, counts in enumerate(ranks.run(open_files, making=programs.lazily, number=6)):
        # A group may end a moment later: what stays for good grows with each.
        assert counts[-1] - counts[1] < 4, f"rank {rank}: {counts} open files after each communicator"
