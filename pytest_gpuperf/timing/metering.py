"""What steps take from counters: energy, bytes over NVLink, peak memory. Runs in rank processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pytest_gpuperf.figures.readings import RankReading
from pytest_gpuperf.hardware.device import Counters
from pytest_gpuperf.hardware.machine import find_devices
from pytest_gpuperf.timing.clock import reduce_to_slowest
from pytest_gpuperf.timing.device_memory import count_held_bytes, own_peak, release_memory
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import Step, find_reset, prepare
from pytest_gpuperf.timing.verification import Verification, Verify

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

_WARMUP_STEPS = 5
_ESTIMATE_STEPS = 5

NOTHING = Counters(None, None, None)


def meter(
    context: Context,
    program: Callable[..., Any],
    kwargs: Mapping[str, Any],
    sampling: Sampling,
    gpus: tuple[str, ...],
    verify: Verify | None = None,
) -> RankReading:
    """Takes steps one after the other for ``sampling.window`` seconds, between two looks at the counters.

    Args:
        context: the rank's.
        program: prepares the step.
        kwargs: for it.
        sampling: what the author chose.
        gpus: UUIDs of all ranks' GPUs, in rank order; empty on CPUs.
        verify: looks at what the first step and the last one return.

    Raises:
        AssertionError: ``verify`` found an output wrong.
        TypeError: the program returned no step, or one with a reset, which counters cannot leave out.
    """
    release_memory(context.device)  # the peak is to be of this program alone
    _meet(cuda=context.device.type == "cuda")
    there = count_held_bytes(context.device)  # after a collective
    reading = _meter(context, program, kwargs, sampling, gpus, verify)
    return replace(reading, peak_bytes=own_peak(reading.peak_bytes, there, context.device))


def _meter(
    context: Context,
    program: Callable[..., Any],
    kwargs: Mapping[str, Any],
    sampling: Sampling,
    gpus: tuple[str, ...],
    verify: Verify | None,
) -> RankReading:
    step = prepare(context, program, kwargs)
    if find_reset(step) is not None:
        name = getattr(program, "__qualname__", repr(program))
        raise TypeError(
            f"the step of {name} has a reset, and counters go on counting meanwhile: meter a step that can be "
            "repeated as it is"
        )
    verification = Verification.of(verify, context, program)
    taken = 0
    if verification is not None:
        verification(step(), taken := 1)
    steps, warmed = _estimate_steps(context, step, sampling)
    cuda = context.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    devices = find_devices()
    with devices.session() if gpus else nullcontext(False) as present:

        def count() -> Counters:
            return devices.counters(gpus[context.rank]) if present else NOTHING

        _meet(cuda=cuda)
        before = count()
        _meet(cuda=cuda)  # nobody steps while another one's counters are read
        start = time.perf_counter()
        for _ in range(steps):
            step()
        _meet(cuda=cuda)
        end = time.perf_counter()
        after = count()
    peak = torch.cuda.max_memory_allocated() if cuda else None
    if verification is not None:
        verification(step(), taken + warmed + steps + 1)
    return RankReading(
        steps=steps,
        seconds=end - start,
        joules=_compute_difference(before.joules, after.joules),
        sent=_compute_difference(before.nvlink_sent, after.nvlink_sent),
        received=_compute_difference(before.nvlink_received, after.nvlink_received),
        peak_bytes=peak,
    )


def _estimate_steps(context: Context, step: Step, sampling: Sampling) -> tuple[int, int]:
    """As many as fill the window on the slowest rank, after a warm-up; and how many were taken to find that out."""
    if sampling.smoke:
        return 1, 0
    cuda = context.device.type == "cuda"
    for _ in range(_WARMUP_STEPS):
        step()
    _meet(cuda=cuda)
    start = time.perf_counter()
    for _ in range(_ESTIMATE_STEPS):
        step()
    if cuda:
        torch.cuda.synchronize()
    seconds = reduce_to_slowest([(time.perf_counter() - start) / _ESTIMATE_STEPS], context.device)[0]
    return max(1, math.ceil(sampling.window / seconds)), _WARMUP_STEPS + _ESTIMATE_STEPS


def _meet(*, cuda: bool) -> None:
    """All ranks are here, and their devices have nothing left to do."""
    if cuda:
        torch.cuda.synchronize()
    dist.barrier()
    if cuda:
        torch.cuda.synchronize()


def _compute_difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
