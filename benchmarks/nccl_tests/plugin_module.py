"""The tests of the plugin's arm, which copies this file to an empty folder and has pytest run it there.

Each test measures one sweep of sizes on one process group, as each process of nccl-tests does on its communicators.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Perf, Ranks
from pytest_gpuperf.report.tripped import say_tripped
from suites.collectives.programs import plain
from suites.collectives.programs.sweeping import OPERATIONS, of_size
from suites.collectives.reference import Collective
from suites.shared.step import Step

_PLAN = json.loads(os.environ["AGAINST_NCCL_TESTS_PLAN"])
OPS: list[str] = _PLAN["ops"]
RANKS: list[int] = _PLAN["ranks"]
SWEEPS: list[dict[str, Any]] = _PLAN["sweeps"]


def ring(ctx: Context, *, collective: Collective) -> Step[torch.Tensor]:
    """Each rank sends to the next: ncclSend and ncclRecv on the current stream, as sendrecv_perf calls them.

    The suite's program does it by batch_isend_irecv, which is asynchronous and so runs on a stream of torch's: going
    there and back takes 1 us, a fifth of the latency.
    """
    ranks = range(ctx.world_size)
    splits = tuple(tuple(collective.numel if to == (rank + 1) % len(ranks) else 0 for to in ranks) for rank in ranks)
    return plain.all_to_all_uneven(ctx, collective=replace(collective, name="all_to_all_uneven", splits=splits))


def loaded_nccl(ctx: Context) -> int | None:
    """The version number of the NCCL library in the rank's memory; None on CPUs."""
    if ctx.device.type != "cuda":
        return None
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and Path(path[0]).name.startswith("libnccl.so"):
            version = ctypes.c_int()
            ctypes.CDLL(path[0]).ncclGetVersion(ctypes.byref(version))
            return version.value
    major, minor, patch = torch.cuda.nccl.version()  # torch was linked with a static NCCL
    return int(major) * 10000 + int(minor) * 100 + int(patch)


@pytest.mark.perf
@pytest.mark.ranks(*RANKS)
@pytest.mark.parametrize("sweep", SWEEPS, ids=[sweep["quantity"] for sweep in SWEEPS])
@pytest.mark.parametrize("op", OPS)
def test_sweep(perf: Perf, ranks: Ranks, op: str, sweep: dict[str, Any], record_property: Any) -> None:
    """Records each size's time and bus bandwidth."""
    program, _ = OPERATIONS[op]
    if op == "send_recv" and sweep["quantity"] == "latency":
        program = ring
    timed = perf.configured(cuda_graph=sweep["cuda_graph"])
    for nbytes in sweep["sizes"]:
        timing = timed.measure(program, collective=of_size(op, nbytes, perf.world_size))
        point = {"op": op, "ranks": perf.world_size, "nbytes": nbytes}
        figure = {
            "seconds": timing.median,
            "busbw": timing.busbw(op, nbytes).value,
            "unfit": say_tripped(timing.conditions.tripped),
        }
        record_property("point", json.dumps({"point": point, "figure": figure}))
    record_property("nccl", json.dumps(ranks.run(loaded_nccl)[0]))
    perf.check(time=timing.time)  # a perf test must check something; nobody reads the verdict
