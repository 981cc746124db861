"""Results of hosts, as ``--gpuperf-json`` writes them."""

from collections.abc import Mapping
from pathlib import Path

from pytest_gpuperf.baselines.schema import Baselines, LaunchFigure, LaunchInfo, MetricBaseline, TestBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report.results_file import Results, write
from pytest_gpuperf.verdicts.verdict import judge_unjudged

KEY = "8x-nvidia-h200-nv18"
MATCH: dict[str, str | int | float | None] = {"gpu_name": "NVIDIA H200", "gpu_count": 8, "power_limit_w": 700.0}
TEST = "suites/collectives/test_performance.py::test_bus_bandwidth[8ranks-all_reduce-1GiB]"


def result(
    folder: Path,
    host: str,
    figures: Mapping[str, float],
    *,
    key: str = KEY,
    watts: float = 700.0,
    gpus: str = "",
    body: str = "body-1",
    limit_name: str = "nv18",
) -> Path:
    """Writes the results of one host: bandwidths by name."""
    launch = f"launch-{host}-{gpus}"
    metrics = {
        name: MetricBaseline("B/s", "higher", "cuda_event", (LaunchFigure(launch, 50, value),))
        for name, value in figures.items()
    }
    candidate = Baselines(
        key,
        {**MATCH, "power_limit_w": watts},
        {launch: LaunchInfo("2026-11-21T10:00:00Z", "abc123", host, {"torch": "2.11.0"}, gpus)},
        {TEST: TestBaseline(body, metrics)},
    )
    shown = {name: Metric(value, "B/s", "higher", limit_name=limit_name) for name, value in figures.items()}
    path = folder / f"{host}{gpus}.json"
    write(path, Results(candidate, tuple(judge_unjudged(TEST, shown, key))))
    return path
