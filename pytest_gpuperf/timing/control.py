"""The control workload: the same matrix product and all_reduce in every launch of every suite. Runs in rank processes.

No test's program has a part in it. Where it got slower, the machine did, or the software under all programs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pytest_gpuperf.timing.clock import slowest
from pytest_gpuperf.timing.device_memory import release_memory
from pytest_gpuperf.timing.measure import measure
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import Step

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

SAMPLING = Sampling(samples=50, budget=0.1)

# Long enough on an H200 not to be the host's time: 1.1 TFLOP, and 64 MiB of bfloat16. CPUs get what they can do.
WIDTH = {"cuda": 8192, "cpu": 256}
NBYTES = {"cuda": 64 * 2**20, "cpu": 2**20}


def matmul(context: Context) -> Step:
    """A product of square bfloat16 matrices of normal numbers: how much power it takes depends on the data."""
    width = WIDTH[context.device.type]
    generator = torch.Generator(context.device).manual_seed(1)
    a, b = (
        torch.randn(width, width, device=context.device, dtype=torch.bfloat16, generator=generator) for _ in range(2)
    )
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def all_reduce(context: Context) -> Step:
    """The largest of all ranks' numbers, which does not change from step to step, as a sum would."""
    x = torch.ones(NBYTES[context.device.type] // 2, device=context.device, dtype=torch.bfloat16)
    return lambda: dist.all_reduce(x, dist.ReduceOp.MAX)


def control(context: Context) -> dict[str, float]:
    """Median seconds of the slowest rank, by name; entry function of a run. One rank has nothing to reduce."""
    programs: dict[str, Callable[[Context], Step]] = {"matmul": matmul}
    if context.world_size > 1:
        programs["all_reduce"] = all_reduce
    samples = {name: measure(context, program, {}, SAMPLING) for name, program in programs.items()}
    release_memory(context.device)  # no test is to find another allocator than without it
    return {name: statistics.median(slowest(of.seconds, context.device)) for name, of in samples.items()}
