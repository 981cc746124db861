"""A delay on the rank's device, as a slow part of a machine would cause it."""

from __future__ import annotations

import time

import torch

from pytest_gpuperf import Context


class Delay:
    """Keeps the device busy for so long; on a GPU by cycles, whose rate is measured once."""

    def __init__(self, ctx: Context, seconds: float) -> None:
        self.seconds = seconds
        self._cycles = _cycles(seconds) if ctx.device.type == "cuda" else None

    def __call__(self) -> None:
        if self._cycles is None:
            time.sleep(self.seconds)
        else:
            torch.cuda._sleep(self._cycles)


def _cycles(seconds: float) -> int:
    """GPU cycles of so many seconds, by how long some took."""
    tried = 20_000_000
    torch.cuda._sleep(tried)  # the clocks rise first
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(tried)
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return round(tried * seconds / (milliseconds / 1e3))
