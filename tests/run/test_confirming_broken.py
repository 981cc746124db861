"""Fresh launches that break: what becomes of the suspect, of its other figures, and of other tests."""

import json
from pathlib import Path

import pytest

from tests.fake_gpus import without_ranks
from tests.run.test_confirming import log, project
from tests.run.test_judged_run import CONFTEST
from tests.scripted_figures import STEADY, TESTS, figures, judged
from tests.whole_run import run_pytest, write

__all__ = ["project"]

pytestmark = pytest.mark.usefixtures("eight_gpus")


def test_a_fresh_launch_that_fails_fails_the_test(project: pytest.Pytester) -> None:
    figures(project, a=[90e9, 100e9, None])
    result = judged(project)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_it.py::test_a[[]2ranks[]] FAILED*",
            "*RuntimeError: this launch came to nothing",
            "*in a fresh launch, test_it.py::test_a#3[[]2ranks[]], call",
        ]
    )


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ("hot", "*was measured on a machine that was not fit for it, twice: GPU GPU-1: power brake"),
        (500e9, "*500.0 GB/s is above the physical limit 450.0 GB/s*"),
        ("other", "*test_a#3[[]2ranks[]]: the test checked no busbw in this launch, as it had before"),
    ],
    ids=["invalid", "above its limit", "not there"],
)
def test_a_figure_that_proves_nothing_decides_nothing(
    project: pytest.Pytester, figure: float | str, message: str
) -> None:
    figures(project, a=[90e9, 100e9, figure, 100e9])
    result = judged(project)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([message, "*in a fresh launch, test_it.py::test_a#3[[]2ranks[]], call"])


MODULE = TESTS.partition("def test_a")[0]
BREAKS_DOWN = """
@pytest.fixture(scope="module")
def module_fixture():
    yield
    log("module down")
    if (FOLDER / "b.json").read_text() == "[100000000000.0]":
        raise RuntimeError("the module came to nothing")
"""


def two_modules(beginning: str = MODULE) -> dict[str, str]:
    """Tests a and b in one, d in another."""
    a, b, d = (f"\ndef test_{name}(perf, own):\n    measured(perf, {name!r})\n" for name in "abd")
    return {"test_it.py": beginning + a + b, "test_more.py": MODULE + d}


def test_a_suspect_that_gets_no_more_launches_is_in_no_others_way(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ranks(monkeypatch)
    write(pytester.path, two_modules())
    figures(pytester, a=STEADY * 2, b=STEADY * 2, d=STEADY * 2)
    options = ("--gpus=2", "--update-baselines", "--launches=10", "--reason=first")
    assert pytester.runpytest_inprocess(*options).ret == 0
    log(pytester)
    figures(pytester, a=[90e9, 100e9], b=[90e9, None], d=[90e9, 100e9])
    result = judged(pytester)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*RuntimeError: this launch came to nothing"])
    lines = log(pytester)
    assert lines.count("module up") == lines.count("module down")


@pytest.mark.parametrize("beginning", [MODULE, MODULE + BREAKS_DOWN], ids=["quiet", "breaking"])
def test_under_xdist_a_suspect_that_broke_off_leaves_nothing_to_the_next_test(tmp_path: Path, beginning: str) -> None:
    conftest = CONFTEST + "fake_gpus.without_ranks(pytest.MonkeyPatch())\n"
    folder = write(tmp_path, {"conftest.py": conftest, "pytest.ini": "[pytest]\n", **two_modules(beginning)})
    for name in "abd":
        (folder / f"{name}.json").write_text(json.dumps(STEADY * 2))
    run = run_pytest(folder, "--gpus=2", "--update-baselines", "--launches=10", "--reason=first")
    assert run.result.ret == 0, run.text
    for name, values in {"a": [100e9], "b": [90e9, None, 100e9], "d": [100e9]}.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    run = run_pytest(folder, "--gpus=2", "-n1")
    run.result.assert_outcomes(passed=2, failed=1)
    assert "RuntimeError: this launch came to nothing" in run.text
    assert ("RuntimeError: the module came to nothing" in run.text) == (beginning != MODULE)


@pytest.mark.parametrize(("fresh", "there"), [([94e9, 93e9], "94.00 GB/s, 93.00 GB/s"), ([], "none")])
def test_a_fresh_launch_that_is_skipped_says_why_and_what_was_measured(
    project: pytest.Pytester, fresh: list[float], there: str
) -> None:
    figures(project, a=[90e9, *fresh, "skip"])
    result = judged(project, "--junitxml=report.xml")
    result.assert_outcomes(passed=2, failed=1)
    line = (
        f"test_it.py::test_a#{len(fresh) + 2}[2ranks]: a fresh launch was skipped, expected a figure of each: not "
        f"today; so nothing was decided of busbw (90.00 GB/s in the first launch, {there} in fresh ones): let the test "
        "skip in every launch or in none"
    )
    assert line in result.outlines
    assert line in (project.path / "report.xml").read_text()


WITH_OTHERS = """
def test_d(perf):
    perf.check(steady=Metric(1.0, "s", "lower", clock="host"))
    perf.show(shown=Metric(2.0, "s", "lower", clock="host"))
    if (FOLDER / "more").exists():
        perf.check(new=Metric(3.0, "s", "lower", clock="host"))
    measured(perf, "d")
"""


@pytest.fixture
def with_others(project: pytest.Pytester) -> pytest.Pytester:
    """One more test, with more figures than that which a fresh launch breaks at."""
    project.makepyfile(test_it=TESTS + WITH_OTHERS)
    figures(project, d=STEADY * 2)
    options = ("--gpus=2", "--update-baselines", "--launches=10", "--reason=x", "-k", "test_d")
    assert project.runpytest_inprocess(*options).ret == 0
    return project


@pytest.mark.parametrize("fresh", [None, "skip", "other", "hot"])
def test_where_a_fresh_launch_breaks_the_tests_other_figures_are_told(
    with_others: pytest.Pytester, fresh: str | None
) -> None:
    figures(with_others, d=[90e9, fresh])
    result = judged(with_others, "-k", "test_d", "--junitxml=report.xml", "--gpuperf-json=results.json")
    result.assert_outcomes(failed=1)
    counted = "3 figures on 2x-nvidia-h200-nv18: 1 suspect, 1 same, 1 unjudged"
    assert counted in result.outlines
    for line in ("suspect*90.00 GB/s*test_d[[]2ranks[]] busbw", "same*1.000 s*steady", "unjudged*2.000 s*shown"):
        result.stdout.fnmatch_lines([line])
    junit = (with_others.path / "report.xml").read_text()
    assert 'name="gpuperf.steady.verdict" value="same"' in junit
    assert 'name="gpuperf_fresh_launch" value="test_it.py::test_d#2[2ranks], call"' in junit
    written = json.loads((with_others.path / "results.json").read_text())
    assert [verdict["outcome"] for verdict in written["verdicts"]] == ["same", "suspect", "unjudged"]


@pytest.mark.parametrize("more", [False, True], ids=["", "and a figure fails"])
def test_a_test_that_a_fresh_launch_breaks_is_told_to_have_failed_by_itself(
    with_others: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, more: bool
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    if more:
        (with_others.path / "more").touch()
    figures(with_others, d=[90e9, None])
    result = judged(with_others, "-k", "test_d", "--gpuperf-json=results.json")
    result.assert_outcomes(failed=1)
    told = [line.partition(",title=")[2] for line in result.outlines if line.startswith("::error ")]
    failed = "failed%3A test_it.py%3A%3Atest_d[2ranks]::RuntimeError: this launch came to nothing"
    assert failed in told
    assert len(told) == 1 + more
    line = "gpuperf: figures of test_it.py::test_d[2ranks] left out of the results: the test failed: mend it"
    assert line in result.outlines
    assert json.loads((with_others.path / "results.json").read_text())["candidate"]["tests"] == {}
