"""``--strict-baselines``: what becomes of figures that have no baseline, here and in CI."""

import pytest

from pytest_gpuperf.report import results_file
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from tests.fake_gpus import without_ranks

TEST = """
import pytest
from pytest_gpuperf import Exchange, Metric, Work
GIB = 2**30
@pytest.mark.perf
@pytest.mark.ranks(2)
@pytest.mark.parametrize("figure", [330e9, 37e9], ids=["healthy", "hurt"])
def test_links(perf, figure):
    work = Work(2, (Exchange("all_reduce", GIB),), amount=GIB)
    perf.check(busbw=Metric(figure, "B/s", "higher", limit=450e9, limit_name="nv18").for_work(work))
@pytest.mark.perf
@pytest.mark.ranks(2)
def test_unknown(perf):
    perf.check(time=Metric(1.0, "s", "lower"))
"""
HEALTHY = "test_it.py::test_links[2ranks-healthy]"
ONLY_A_MODEL = "without a baseline: 1 metric as a model of the hardware expects, *"

pytestmark = pytest.mark.usefixtures("eight_gpus")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    without_ranks(monkeypatch)
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(test_it=TEST)
    return pytester


def test_without_baselines_a_model_judges_and_what_nothing_judges_is_shown(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--gpus=2", "--gpuperf-json=results.json")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "busbw 37.00 GB/s: worse than expected (262.* GB/s to 459.0 GB/s)",
            "  a model of the hardware expects 262.* GB/s to 459.0 GB/s (links between GPUs (NV18))",
            "  median of 3 launches",
            "  look for the cause with: *doctor",
            "  record one with: *",
            "  missing *330.0 GB/s*healthy]",
            "  missing *1.000 s*test_unknown[[]2ranks]",
            f"*{ONLY_A_MODEL[:-3]}*; 1 metric not judged, *",
        ],
        consecutive=False,
    )
    said = {verdict.test: verdict for verdict in results_file.load(project.path / "results.json").verdicts}
    assert {verdict.outcome for verdict in said.values()} == {Outcome.MISSING}
    assert {test.rpartition("::")[2]: verdict.reason for test, verdict in said.items()} == {
        "test_links[2ranks-healthy]": Reason.PLAUSIBLE,
        "test_links[2ranks-hurt]": Reason.BELOW,
        "test_unknown[2ranks]": Reason.NOT_JUDGED,
    }
    opinion = said[HEALTHY].opinion
    assert opinion is not None
    assert opinion.component == "links between GPUs (NV18)"
    work = said[HEALTHY].metric.work
    assert work is not None
    assert work.exchanges[0].op == "all_reduce"


def test_a_figure_below_the_model_tells_the_variables_that_are_set(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("NCCL_VERSION", "2.28.3-1")  # of a container image
    result = project.runpytest_inprocess("--gpus=2", "--gpuperf-json=results.json")
    result.stdout.fnmatch_lines(["  set here: *NCCL_P2P_DISABLE=1*CUDA_LAUNCH_BLOCKING=1", "  look for *"])
    said = {verdict.test: verdict.opinion for verdict in results_file.load(project.path / "results.json").verdicts}
    hurt, healthy = (said[HEALTHY.replace("healthy", name)] for name in ("hurt", "healthy"))
    assert hurt is not None
    assert healthy is not None
    assert {"NCCL_P2P_DISABLE=1", "CUDA_LAUNCH_BLOCKING=1"} <= set(hurt.variables)
    assert not any(told.startswith("NCCL_VERSION") for told in hurt.variables)
    assert healthy.variables == ()


@pytest.mark.parametrize(
    ("option", "ci", "strict"),
    [
        ("--strict-baselines", None, True),
        ("--no-strict-baselines", "true", False),
        (None, "true", True),
        (None, "1", True),
        (None, "false", False),
        (None, "0", False),
        (None, "", False),
        (None, None, False),
    ],
)
def test_strict_baselines_are_the_default_in_ci(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: str | None, ci: str | None, strict: bool
) -> None:
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    result = project.runpytest_inprocess("--gpus=2", "-khealthy", *([] if option is None else [option]))
    if strict:
        result.assert_outcomes(failed=1, deselected=2)
        result.stdout.fnmatch_lines(
            ["busbw 330.0 GB/s: no baseline on *", "  it is plausible; --strict-baselines requires a baseline"]
        )
        result.stdout.no_fnmatch_line(f"*{ONLY_A_MODEL}")
    else:
        result.assert_outcomes(passed=1, deselected=2)
        result.stdout.fnmatch_lines([f"*{ONLY_A_MODEL}"])
