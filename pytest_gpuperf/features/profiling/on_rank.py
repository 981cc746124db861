"""A few steps of a measured program under torch.profiler. Runs in rank processes."""

from __future__ import annotations

import gzip
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_gpuperf.timing.clock import choose_clock
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import Step, capture, find_reset, prepare
from pytest_gpuperf.torch_internals import find_flight_recorder
from pytest_gpuperf.traces.rank_trace import STEP, Issued, RankTrace

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

STEPS = 3
WARMUP_STEPS = 3  # without the profiler: what the first calls set up is not the step's
NSYS = "NSYS_PROFILING_SESSION_ID"
"""Nsight Systems sets it in the processes that it profiles; CUPTI serves one profiler at a time."""


def profile_steps(
    context: Context,
    program: Callable[..., Any],
    kwargs: Mapping[str, Any],
    sampling: Sampling,
    title: str,
    sizes: Sequence[int] = (),
    nbytes: int | None = None,
) -> RankTrace:
    """Prepare a measured program once more and profile a few of its steps; entry function of a run.

    Each step is taken as a sample of the measurement is: after a reset, all ranks together, and on a GPU behind the
    gate that holds the device until the host has launched the step.

    Args:
        context: the rank's.
        program: prepares the step; of a sweep, the function of a size.
        kwargs: for it.
        sampling: as for the measurement.
        title: the test and its arm, which NVTX ranges have as their name.
        sizes: of a sweep, in bytes.
        nbytes: the size to be profiled of them.
    """
    step = (
        prepare(context, program, kwargs) if nbytes is None else _prepare_size(context, program, kwargs, sizes, nbytes)
    )
    reset = find_reset(step)
    cuda = context.device.type == "cuda"
    if sampling.cuda_graph and cuda:
        step = capture(step, 1)
    clock = choose_clock(context.device, sampling)
    for _ in range(WARMUP_STEPS):
        clock.time(step, 1, reset)
    with ExitStack() as stack:
        stack.enter_context(_nvtx(title, cuda=cuda))
        profiler = None if cuda and NSYS in os.environ else stack.enter_context(_make_profiler(cuda=cuda))
        started = time.time_ns()  # once the profiler is ready, which takes it up to a second
        for number in range(1, STEPS + 1):
            clock.time(_name_steps(step, f"{STEP} {number} of {STEPS}", cuda=cuda), 1, reset)
    chrome = b"" if profiler is None else _export_chrome(profiler)
    issued = () if cuda else _list_issued(context.backend, started)
    return RankTrace(context.rank, str(context.device), started, chrome, issued)


def _prepare_size(
    context: Context, program: Callable[..., Any], kwargs: Mapping[str, Any], sizes: Sequence[int], nbytes: int
) -> Step:
    step: Step = program(context, sizes=tuple(sizes), **kwargs)(nbytes)
    return step


def _make_profiler(*, cuda: bool) -> profile:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    return profile(activities=activities, acc_events=True)


def _name_steps(step: Step, name: str, *, cuda: bool) -> Step:
    def name_and_run() -> Any:
        with _nvtx(name, cuda=cuda), record_function(name):
            return step()

    return name_and_run


@contextmanager
def _nvtx(name: str, *, cuda: bool) -> Iterator[None]:
    if not cuda:
        yield
        return
    with torch.cuda.nvtx.range("{}", name.encode("ascii", "backslashreplace").decode()):
        yield


def _export_chrome(profiler: profile) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return gzip.compress(path.read_bytes(), compresslevel=1)


def _list_issued(backend: str, since: int) -> tuple[Issued, ...]:
    dump = find_flight_recorder(backend)
    if dump is None:
        return ()
    entries = pickle.loads(dump()).get("entries", [])
    return tuple(
        Issued(entry["profiling_name"], entry["process_group"][0], entry["collective_seq_id"])
        for entry in entries
        if entry["time_created_ns"] >= since and not entry.get("is_p2p", False)
    )
