"""Baselines that several tests start from, and any others that are valid."""

from hypothesis import strategies as st

from pytest_gpuperf.baselines.schema import Baselines, LaunchFigure, LaunchInfo, MetricBaseline, TestBaseline, Update

KEY = "8x-nvidia-h200-nv18"
TEST = "suites/collectives/test_performance.py::test_all_reduce[8ranks-1GiB]"


def launch(host: str = "h1") -> LaunchInfo:
    return LaunchInfo("2026-11-21T10:00:00Z", "abc123", host, {"nccl": "2.28.9", "torch": "2.13.0"})


def metric_baseline(
    *medians: float, unit: str = "B/s", better: str = "higher", clock: str = "cuda_event"
) -> MetricBaseline:
    figures = tuple(LaunchFigure(f"launch-{i}", 50, m, m * 0.99, m * 1.01) for i, m in enumerate(medians))
    return MetricBaseline(unit, "higher" if better == "higher" else "lower", clock, figures)


def update_of(*tests: str) -> Update:
    return Update("2026-11-21T10:00:00Z", "abc123", "Ada <ada@example.org>", "NCCL 2.28.9", tests, 2)


def baselines(*medians: float, test: str = TEST) -> Baselines:
    medians = medians or (356e9, 357e9)
    return Baselines(
        hardware_key=KEY,
        match={"gpu_name": "NVIDIA H200", "gpu_count": 8, "power_limit_w": 700.0},
        launches={f"launch-{i}": launch() for i in range(len(medians))},
        tests={test: TestBaseline("body-1", {"busbw": metric_baseline(*medians)})},
        updates=(update_of(test),),
    )


# Numbers of five significant digits are what a file keeps.
_figures = st.floats(1e-12, 1e18).map(lambda value: float(f"{value:.5g}"))
_ids = st.sampled_from(["a", "b", "c", "d"])
_launch_figures = st.builds(
    LaunchFigure, _ids, st.integers(1, 10**6), _figures, st.none() | _figures, st.none() | _figures
)
_metrics = st.builds(
    MetricBaseline,
    unit=st.sampled_from(["B/s", "s", "x"]),
    better=st.sampled_from(["higher", "lower"]),
    clock=st.text(max_size=5),
    launches=st.lists(_launch_figures, min_size=1, unique_by=lambda figure: figure.launch).map(tuple),
)
_tests = st.builds(TestBaseline, st.text(max_size=5), st.dictionaries(st.text(max_size=5), _metrics, max_size=3))
_infos = st.builds(
    LaunchInfo,
    st.text(),
    st.text(),
    st.text(),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
    st.text(),
    st.booleans(),
)
_updates = st.builds(
    Update,
    st.text(),
    st.text(),
    st.text(),
    st.text(),
    st.lists(st.text(max_size=5)).map(tuple),
    st.integers(1, 99),
)
any_baselines = st.builds(
    Baselines,
    hardware_key=st.just(KEY),
    match=st.dictionaries(st.text(max_size=5), st.text() | st.integers() | st.booleans() | st.none() | _figures),
    launches=st.fixed_dictionaries({"a": _infos, "b": _infos, "c": _infos, "d": _infos}),
    tests=st.dictionaries(st.text(max_size=10), _tests, max_size=3),
    updates=st.lists(_updates, max_size=2).map(tuple),
)
