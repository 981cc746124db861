"""The control workload: the same matrix product and all_reduce in every launch of every suite. Runs in rank processes.

No test's program has a part in it. Where it got slower, the machine did, or the software under all programs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pytest_gpuperf.timing.clock import clock_for, slowest
from pytest_gpuperf.timing.device_memory import release_memory
from pytest_gpuperf.timing.measure import measure
from pytest_gpuperf.timing.sampling import MAX_STEPS_PER_SAMPLE, Sampling
from pytest_gpuperf.timing.stepping import Step

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

SAMPLING = Sampling(samples=50, budget=0.1)

# Long enough on an H200 not to be the host's time: 1.1 TFLOP, and 64 MiB of bfloat16. CPUs get what they can do.
WIDTH = {"cuda": 8192, "cpu": 256}
NBYTES = {"cuda": 64 * 2**20, "cpu": 2**20}

# A GPU at its power limit swings its clocks about once a second. On an H200, of a product that takes 1.66 ms, medians
# over 0.1 s scatter by 2.5 % (standard deviation), over 1 s by 0.8 %, means over 1 s by 0.2 %.
SUSTAINED_SECONDS = {"cuda": 1.0, "cpu": 0.02}
RISING_SECONDS = {"cuda": 0.25, "cpu": 0.005}  # until it is at its power limit
SAMPLE_SECONDS = 0.05  # at most

Part = Callable[["Context"], float]
"""Seconds of one step, the same on all ranks; entry function of a run."""


def workload(world_size: int) -> dict[str, Part]:
    """The parts by name; one rank has nothing to reduce."""
    # The product comes last: what follows is not to meet GPUs that are still at their power limit.
    first: dict[str, Part] = {"all_reduce": all_reduce} if world_size > 1 else {}
    return {**first, "sustained matmul": sustained_matmul}


def sustained_matmul(context: Context) -> float:
    """The slowest rank's mean time of a product, of as many as its device does in a second."""
    seconds = sustained(context, matmul(context))
    release_memory(context.device)  # no test is to find another allocator than without it
    return seconds


def all_reduce(context: Context) -> float:
    """The slowest rank's median time of an all_reduce."""
    samples = measure(context, largest, {}, SAMPLING)
    release_memory(context.device)
    return statistics.median(slowest(samples.seconds, context.device))


def matmul(context: Context) -> Step:
    """A product of square bfloat16 matrices of normal numbers: how much power it takes depends on the data."""
    width = WIDTH[context.device.type]
    generator = torch.Generator(context.device).manual_seed(1)
    a, b = (
        torch.randn(width, width, device=context.device, dtype=torch.bfloat16, generator=generator) for _ in range(2)
    )
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def largest(context: Context) -> Step:
    """The largest of all ranks' numbers, which does not change from step to step, as a sum would."""
    x = torch.ones(NBYTES[context.device.type] // 2, device=context.device, dtype=torch.bfloat16)
    return lambda: dist.all_reduce(x, dist.ReduceOp.MAX)


def sustained(context: Context, step: Step) -> float:
    """The slowest rank's mean seconds of a step that is repeated for so long that clocks swing to either side."""
    clock, device = clock_for(context.device, SAMPLING), context.device
    step()
    [one] = slowest([min(clock.time(step, 1) for _ in range(3))], device)
    calls = max(1, min(MAX_STEPS_PER_SAMPLE, round(SAMPLE_SECONDS / one)))

    def mean(seconds: float) -> float:
        samples = [clock.time(step, calls) for _ in range(math.ceil(seconds / (calls * one)))]
        return statistics.fmean(samples) / calls

    mean(RISING_SECONDS[device.type])
    return slowest([mean(SUSTAINED_SECONDS[device.type])], device)[0]
