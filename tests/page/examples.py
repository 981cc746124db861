"""Results as pages meet them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pytest_gpuperf.baselines.plain import make_plain
from pytest_gpuperf.baselines.schema import Baselines, LaunchFigure, LaunchInfo, MetricBaseline, TestBaseline
from pytest_gpuperf.features import list_shown
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.topology import Path, Topology
from pytest_gpuperf.report.ran import Ran
from pytest_gpuperf.report.results_file import Results
from pytest_gpuperf.traces.profile import KINDS, Lane, Profile, RankTimes
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.share import Share
from pytest_gpuperf.verdicts.verdict import Verdict

KEY = "2x-nvidia-h200-nv18"
TEST = "suites/collectives/test_performance.py::test_bus_bandwidth[2ranks-all_reduce-64MiB]"
RECORD = MetricBaseline(
    "B/s",
    "higher",
    "cuda_event",
    tuple(LaunchFigure(f"2026-11-0{day}T10:00:00Z-1-a", 9, 270e9 + day * 1e9) for day in range(1, 6)),
)
TRACE = tuple(213e9 + 1e9 * (number % 3) for number in range(9))
METRIC = Metric(214e9, "B/s", "higher", 213e9, 215e9, 9, 450e9, "cuda_event", "nv18", trace=TRACE)
REGRESSED = Verdict(
    TEST,
    "busbw",
    METRIC,
    Outcome.REGRESSED,
    KEY,
    RECORD,
    -0.2,
    0.03,
    against="7ba55cceb3f6",
    code=Share(-0.201, (-0.21, -0.19), 4),
    environment=Share(0.001, (-0.01, 0.01), 4),
)
SAME = replace(
    REGRESSED,
    test="suites/overlap/test_performance.py::test_overlap[2ranks]",
    metric_name="speedup",
    metric=Metric(1.24, "x", "higher", interval=(1.2, 1.28)),
    outcome=Outcome.SAME,
    baseline=replace(RECORD, unit="x", launches=(LaunchFigure("a", 9, 1.23), LaunchFigure("b", 9, 1.25))),
    change=0.0,
    code=None,
    environment=None,
)
CURVE: dict[str, Any] = {
    "test": "suites/collectives/test_performance.py::test_curve[2ranks-send_recv]",
    "op": "send_recv",
    "world_size": 2,
    "sizes": [2**power for power in range(10, 20)],
    "seconds": [1e-5] * 10,
    "quartiles": [[1e-5, 1e-5]] * 10,
    "bandwidths": [2**power / 1e-5 for power in range(10, 20)],
    "half_size": 2.0**18,
    "regimes": [{"first": 2**10, "last": 2**19, "alpha": 1e-5, "beta": None, "residual": 0.0}],
    "dips": [{"size": 2**15, "bandwidth": 2**15 / 1e-5, "promised": 1e11}],
}
MATRIX: dict[str, Any] = {
    "test": "suites/nvlink/test_performance.py::test_pair_bandwidth[3ranks]",
    "name": "pairs",
    "rows": [[None, 386e9, 387e9], [385e9, None, 232e9], [386e9, 388e9, None]],
    "unit": "B/s",
    "better": "higher",
}
PROFILE = Profile(
    "suites/overlap/test_performance.py::test_overlap[2ranks]",
    "together",
    "gpuperf-profiles/overlap.json.gz",
    steps=3,
    overlap_exposed=0.25,
    ranks=(RankTimes(0, "cuda:0", 4e-3, 3e-3, 2e-3, 0.4e-3), RankTimes(1, "cuda:1", 4e-3, 3e-3, 2e-3, 0.6e-3)),
    lanes=tuple(
        Lane(rank, kind, "stream 7", ((5e-4 * number, 1e-3, f"{kind} kernel"),))
        for rank in (0, 1)
        for number, kind in enumerate(KINDS)
    ),
)
TOPOLOGY = Topology(("NVIDIA H200",) * 3, (Path(0, 1, "NV18"), Path(0, 2, "SYS"), Path(1, 2, "PIX")))
SEARCH: dict[str, Any] = {
    "test": "suites/hybrid/test_performance.py::test_meshes[2ranks]",
    "name": "meshes",
    "world_size": 2,
    "trials": [
        {
            "name": name,
            "seconds": seconds,
            "quartiles": None if seconds is None else [seconds, seconds],
            "rate": None if seconds is None else 8192 / seconds,
            "mfu": None if seconds is None else 0.008 / seconds,
            "peak_bytes": peak,
            "host_bytes": host,
            "frontier": frontier,
            "reason": reason,
        }
        for name, seconds, peak, host, frontier, reason in (
            ("dp2", 0.02, 60 * 1024**3, 0, True, ""),
            ("tp2", 0.025, 60 * 1024**3, 0, False, ""),
            ("pp2", 0.04, 31.5 * 1024**3, 4 * 1024**3, True, ""),
            ("cp2", None, None, None, False, "3 layers make no 2 stages"),
            ("dp2 whole", None, None, None, False, "does not fit: needs 143.2 GiB, 139.8 GiB are there"),
        )
    ],
}
FAILED = Ran(
    TEST,
    "failed",
    1.5,
    "suites/collectives/test_performance.py",
    12,
    "busbw regressed",
    "E   Failed: busbw regressed",
    (("roll call", "rank 1 of 2 is in all_reduce"),),
)
SKIPPED = Ran("suites/x.py::test_on_8", "skipped", 0.0, "suites/x.py", 3, "needs 8 GPUs, 2 are in use")

SUMMARY: dict[str, Any] = {
    "title": "unfit: collectives",
    "verdict": "unfit",
    "partial": "",
    "columns": ["component", "state", "what speaks for it"],
    "rows": [
        ["host", "ok", "cores[2ranks] share 0.969x"],
        ["collectives", "slow", "curve[2ranks-send_recv] peak 23.60 GB/s (because: NCCL_P2P_DISABLE=1)"],
        ["network", "not judged", "no RDMA device"],
    ],
    "remarks": ["governor: the governor is powersave"],
}


def results(
    *verdicts: Verdict,
    at: str = "2026-11-20T10:00:00Z",
    key: str = KEY,
    environment: dict[str, str] | None = None,
    ran: Iterable[Ran] = (),
    **more: Any,
) -> Results:
    """Return the results of one launch that came to these verdicts, and that shows these values of each kind."""
    shown = {kind.name: tuple(make_plain(more.pop(kind.name))) for kind in list_shown() if kind.name in more}
    info = LaunchInfo(at, "c0ffee" * 6 + "cafe", "gpu-a", environment or {"torch": "2.11.0", "NCCL_ALGO": "Ring"})
    tests: dict[str, TestBaseline] = {}
    for verdict in verdicts:
        unit, better = verdict.metric.unit, verdict.metric.better
        metric = MetricBaseline(unit, better, "", (LaunchFigure("l", 9, verdict.metric.value),))
        before = tests.get(verdict.test, TestBaseline("hash", {}))
        tests[verdict.test] = replace(before, metrics={**before.metrics, verdict.metric_name: metric})
    candidate = Baselines(key, {}, {"l": info} if verdicts else {}, tests)
    return Results(candidate, tuple(verdicts), (), ran=tuple(ran), shown=shown, **more)
