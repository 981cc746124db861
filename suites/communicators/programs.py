"""The life of a communicator, told by the host's clock: all of it is the host's work and the ranks' meeting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from pytest_gpuperf import Context

NUMEL = 256
Lives = dict[str, list[float]]
"""Seconds by stage of life, one for each communicator."""
Making = Callable[[Context], dist.ProcessGroup]


def lazily(ctx: Context) -> dist.ProcessGroup:
    """A group of all ranks, whose communicator NCCL makes when it is first used."""
    group: dist.ProcessGroup = dist.new_group(list(range(ctx.world_size)))
    return group


def eagerly(ctx: Context) -> dist.ProcessGroup:
    """A group of all ranks, whose communicator exists when the call returns."""
    device = ctx.device if ctx.device.type == "cuda" else None
    group: dist.ProcessGroup = dist.new_group(list(range(ctx.world_size)), device_id=device)
    return group


def split(ctx: Context) -> dist.ProcessGroup:
    """A group of all ranks that NCCL splits from the default one."""
    group = dist.split_group(ctx.group, [list(range(ctx.world_size))])
    assert group is not None, f"rank {ctx.rank} is in no group after the split"
    group.bound_device_id = ctx.device
    return group


def lives(ctx: Context, *, making: Making, number: int, seed: int) -> tuple[Lives, list[torch.Tensor]]:
    """Makes a communicator, uses it twice and takes it down, so many times; returns seconds and sums.

    Args:
        ctx: the rank.
        making: how it is made.
        number: of communicators, one after the other; a process has the default group's before them.
        seed: of what is summed.
    """
    seconds: Lives = {name: [] for name in ("make", "first use", "next use", "destroy")}
    sums = []
    for life in range(number):
        clock = _Stages(ctx)
        group = making(ctx)
        clock.ended("make")
        for stage in ("first use", "next use"):
            x = given(ctx.rank, seed + life).to(ctx.device)
            clock.began()
            dist.all_reduce(x, group=group)
            clock.ended(stage)
            sums.append(x)
        clock.began()
        dist.destroy_process_group(group)
        clock.ended("destroy")
        for name, taken in clock.seconds.items():
            seconds[name].append(taken)
    return seconds, sums


def of_slowest(told: Sequence[Lives]) -> Lives:
    """Seconds of each stage of each communicator, as long as it takes the slowest rank."""
    return {stage: [max(taken) for taken in zip(*(lives[stage] for lives in told), strict=True)] for stage in told[0]}


def given(rank: int, seed: int) -> torch.Tensor:
    """What a rank adds: whole numbers, whose sums are exact."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(-(2**18), 2**18, (NUMEL,), generator=generator).float()


class _Stages:
    """Seconds of each stage, from when all ranks begin until this one is done."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.seconds: dict[str, float] = {}
        self.began()

    def began(self) -> None:
        """All ranks are here."""
        self._ctx.barrier()
        self._wait()
        self._start = time.perf_counter()

    def ended(self, stage: str) -> None:
        """This rank is done with the stage, and its GPU too."""
        self._wait()
        self.seconds[stage] = time.perf_counter() - self._start

    def _wait(self) -> None:
        if self._ctx.device.type == "cuda":
            torch.cuda.synchronize()
