"""Reading what torch.profiler writes."""

import gzip
import json
from typing import Any

import pytest

from pytest_gpuperf.traces.events import read
from pytest_gpuperf.traces.rank_trace import RankTrace
from tests.traces.kineto import STARTED, events, gpu_step, kernel, launch, trace, x


def test_times_count_from_the_origin_whatever_the_trace_counts_from() -> None:
    (mark, *_) = read(trace(gpu_step(5.0)), STARTED - 1_000_000).slices
    assert mark.name == "gpuperf step 1 of 3"
    assert mark.start == pytest.approx(1005.0, abs=1e-3)


def test_a_step_has_what_began_on_the_host_within_it_and_the_kernels_launched_there() -> None:
    late = kernel("late", 500.0, 10.0, 1)
    found = events(launch(3.0, 1), late, *gpu_step(10.0), kernel("of the step, much later", 400.0, 1.0, 1000))
    (step,) = found.steps
    assert step.start == pytest.approx(10.0, abs=1e-3)
    names = [one.name for one in step.slices]
    assert "late" not in names
    assert {"void gemm<float>", "ncclDevKernel_AllReduce", "of the step, much later", "aten::mm"} <= set(names)


NAMED: dict[str, Any] = {"Collective name": "allreduce"}


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (kernel("void gemm", 0, 1, 1), "compute"),
        (kernel("ncclDevKernel_SendRecv", 0, 1, 1), "communication"),
        (kernel("multimem_all_reduce_kernel<float>", 0, 1, 1), "communication"),
        (kernel("named by torch alone", 0, 1, 1, **NAMED), "communication"),
        (x("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 1, pid=0, tid=7), "copy"),
        (x("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 0, 1, pid=0, tid=7), "communication"),
        (x("gpu_memset", "Memset (Device)", 0, 1, pid=0, tid=7), "copy"),
        (x("cpu_op", "aten::mm", 0, 1), "host"),
        (x("user_annotation", "gloo:all_reduce", 0, 1), "communication"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_kind_of_an_event(event: dict[str, object], kind: str) -> None:
    (one,) = events(event).slices
    assert one.kind == kind


@pytest.mark.parametrize(
    "chrome",
    [b"", b"no gzip", gzip.compress(b"no JSON"), gzip.compress(b"[]"), gzip.compress(json.dumps({"a": 1}).encode())],
    # Compressed bytes hold the time: as ids they would differ between xdist's workers.
    ids=["empty", "not compressed", "no JSON", "a list", "no events"],
)
def test_what_is_no_trace_is_refused_by_its_rank(chrome: bytes) -> None:
    with pytest.raises(ValueError, match=r"the trace of rank 3 cannot be read .*: expected the JSON that torch\.prof"):
        read(RankTrace(3, "cpu", STARTED, chrome), STARTED)
