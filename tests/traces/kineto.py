"""Traces as torch.profiler writes them, made by hand: a step of 100 us on a GPU, and one of gloo on a CPU."""

import gzip
import json
from collections.abc import Sequence
from typing import Any

from pytest_gpuperf.traces.events import RankEvents, read
from pytest_gpuperf.traces.rank_trace import Issued, RankTrace

BASE = 1_790_857_026_000_000_000
"""``baseTimeNanoseconds``: torch takes the beginning of a quarter of the year."""
STARTED = BASE + 1_000_000_000

HOST, STREAM, NCCL = 4711, 7, 20
Event = dict[str, Any]


def x(category: str, name: str, at: float, duration: float, *, pid: Any = HOST, tid: int = HOST, **args: Any) -> Event:
    """Make a slice; ``at`` is microseconds since STARTED."""
    place = {"pid": pid, "tid": tid, "ts": 1e6 + at, "dur": duration}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}


def kernel(name: str, at: float, duration: float, correlation: int, tid: int = STREAM, **args: Any) -> Event:
    """Make a kernel."""
    return x("kernel", name, at, duration, pid=0, tid=tid, correlation=correlation, **args)


def launch(at: float, correlation: int) -> Event:
    """Make the call that launches a kernel."""
    return x("cuda_runtime", "cudaLaunchKernel", at, 1.0, correlation=correlation)


def nccl_args(operation: str = "allreduce", ranks: str = "[0, 1]", group: str = "0", **more: Any) -> Event:
    """Make what torch says of a collective on its kernel."""
    return {"Collective name": operation, "Process Group Name": group, "Process Group Ranks": ranks, **more}


def gpu_step(at: float, number: int = 1, exposed: float = 10.0) -> list[Event]:
    """Make a step whose compute takes 50 us from 20 on, and whose all_reduce ends ``exposed`` us after that."""
    first = 1000 * number
    return [
        x("user_annotation", f"gpuperf step {number} of 3", at, 10.0),
        x("cpu_op", "aten::mm", at + 1, 3.0),
        launch(at + 2, first),
        x("cpu_op", "record_param_comms", at + 5, 3.0),
        launch(at + 6, first + 1),
        kernel("void gemm<float>", at + 20, 50.0, first),
        kernel("ncclDevKernel_AllReduce", at + 30, 40.0 + exposed, first + 1, NCCL, **nccl_args()),
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": first, "pid": HOST, "tid": HOST, "ts": 1e6 + at + 2},
        {
            "ph": "f",
            "cat": "ac2g",
            "name": "ac2g",
            "id": first,
            "pid": 0,
            "tid": STREAM,
            "ts": 1e6 + at + 20,
            "bp": "e",
        },
    ]


def gloo_step(at: float, number: int = 1) -> list[Event]:
    """Make a step that computes 30 us beside an all_reduce of 60 us, on a thread of gloo that copies within it."""
    return [
        x("user_annotation", f"gpuperf step {number} of 3", at, 100.0),
        x("cpu_op", "c10d::allreduce_", at + 1, 5.0),
        x("cpu_op", "aten::empty", at + 2, 1.0),
        x("user_annotation", "gloo:all_reduce", at + 10, 60.0, tid=4800),
        x("cpu_op", "aten::copy_", at + 50, 10.0, tid=4800),
        x("cpu_op", "aten::mm", at + 20, 30.0),
        x("cpu_op", "aten::resolve_conj", at + 21, 1.0),
    ]


def trace(events: Sequence[Event], rank: int = 0, device: str = "cuda:0", issued: Sequence[Issued] = ()) -> RankTrace:
    """Make a rank's trace of these events, with what Kineto adds to each."""
    added = [
        {
            "ph": "M",
            "name": "thread_name",
            "ts": 0.0,
            "pid": HOST,
            "tid": HOST,
            "args": {"name": "thread 4711 (python)"},
        },
        {"ph": "M", "name": "process_name", "ts": 0.0, "pid": HOST, "tid": 0, "args": {"name": "python"}},
        x("Trace", "PyTorch Profiler (0)", 0.0, 500.0, pid="Spans"),
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 1e6 + 500, "s": "g"},
    ]
    whole = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": [*added, *events]}
    return RankTrace(rank, device, STARTED, gzip.compress(json.dumps(whole).encode()), tuple(issued))


def events(*of: Event, device: str = "cuda:0", rank: int = 0) -> RankEvents:
    """Read a trace of these events; times count from STARTED."""
    return read(trace(of, rank, device), STARTED)
