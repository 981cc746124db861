"""Wall time of a rank's steps, all ranks beginning together."""

from __future__ import annotations

import time

import torch

from pytest_gpuperf import Context
from suites.shared.step import Step


def seconds_of_steps(ctx: Context, step: Step[object], number: int) -> list[float]:
    """How long each of so many steps takes this rank, to the end of its device's work."""
    taken = []
    for _ in range(number):
        ctx.barrier()
        start = time.perf_counter()
        step()
        if ctx.device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return taken
