"""What a step of offloaded training makes and keeps, on the device and on the host. Runs on ranks."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_gpuperf import Context
from suites.activations.memory import LiveBytes
from suites.data_parallel.problem import Problem
from suites.zero_infinity.programs import disk, host, offloaded, rank_folder

LATE = 0.3  # seconds; gloo's threads held what they had gathered for up to 4 ms more, on cores that were busy

Bytes = dict[str, int]
"""By kind of device; where ranks train on CPUs, what the device and the host hold is one number."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the tensors that are alive, those of mapped files included."""

    before: Bytes
    """The first step."""
    after: list[Bytes]
    """Each step, when the caller has let go of its results, and the backend of what it moved."""
    peak: Bytes
    """Of all steps, results included."""


def memory(ctx: Context, *, problem: Problem, folder: Path | None, **kwargs: Any) -> Memory:
    """What all steps of the problem take, at home in files of this folder or, without one, in memory."""
    devices = {ctx.device, torch.device("cpu")}
    live = {device.type: LiveBytes(device) for device in devices}
    with contextlib.ExitStack() as stack:
        own = None if folder is None else stack.enter_context(rank_folder(ctx, folder))
        for mode in live.values():
            stack.enter_context(mode)

        def alive() -> Bytes:
            return {kind: mode.live() for kind, mode in live.items()}

        def alive_after_a_step() -> Bytes:
            until = time.monotonic() + LATE
            while (now := alive()) != before and all(of_step == before for of_step in after):
                if time.monotonic() > until:
                    break
                time.sleep(1e-3)  # no event tells that a thread of gloo's has let go
            return now

        step = offloaded(ctx, problem=problem, home=host if own is None else disk(own), **kwargs)
        before: Bytes = alive()
        after: list[Bytes] = []
        for mode in live.values():
            mode.peak = 0  # building draws the whole parameters
        for _ in range(problem.steps):
            step()
            after.append(alive_after_a_step())
        return Memory(before, after, {kind: mode.peak for kind, mode in live.items()})
