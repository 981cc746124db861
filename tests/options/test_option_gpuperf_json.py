"""``--gpuperf-json``: the results of a run as a file."""

import json
import os
from pathlib import Path

import pytest

from pytest_gpuperf.report.results_file import Results, load
from tests.fake_gpus import without_ranks
from tests.options.test_option_update_baselines import KEY, NODE, TEST, figures_of, measure, run
from tests.scripted_arms import repeat
from tests.whole_run import run_pytest, write

pytestmark = pytest.mark.usefixtures("eight_gpus")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    without_ranks(monkeypatch)
    repeat(monkeypatch, lambda: figures_of(pytester))
    pytester.makepyfile(test_it=TEST)
    measure(pytester, 300e9)
    return pytester


def results(project: pytest.Pytester, *options: str) -> Results:
    run(project, "--gpuperf-json=out/results.json", *options)
    return load(project.path / "out" / "results.json")


def test_a_judged_run_writes_its_figures_and_verdicts(project: pytest.Pytester) -> None:
    found = results(project)
    assert (found.candidate.hardware_key, list(found.candidate.tests)) == (KEY, [NODE])
    (figure,) = found.candidate.tests[NODE].metrics["busbw"].launches
    assert (figure.median, figure.n) == (300e9, 9)
    assert found.candidate.match["gpu_count"] == 2
    (info,) = found.candidate.launches.values()
    assert info.environment["torch"] == "2.13.0"
    assert info.environment["driver"] == "570.86"
    assert info.environment["kernel"] == os.uname().release
    assert info.environment["cpu cores"] == str(len(os.sched_getaffinity(0)))
    assert [(verdict.test, verdict.outcome.value) for verdict in found.verdicts] == [(NODE, "missing")]
    data = json.loads((project.path / "out" / "results.json").read_text())
    assert (data["hardware_key"], data["environment"]) == (KEY, info.environment)


def test_the_file_says_how_all_gpus_of_the_machine_reach_one_another(project: pytest.Pytester) -> None:
    topology = results(project).topology
    assert topology is not None
    assert topology.gpus == ("NVIDIA H200",) * 8
    assert len(topology.paths) == 28
    assert {path.label for path in topology.paths} == {"NV18"}


def test_a_recording_writes_every_launch(project: pytest.Pytester) -> None:
    found = results(project, "--update-baselines", "--reason=x")
    assert len(found.candidate.tests[NODE].metrics["busbw"].launches) == len(found.candidate.launches) == 5
    assert {verdict.outcome.value for verdict in found.verdicts} == {"recorded"}


def test_the_file_is_named_and_relative_to_where_pytest_was_called(project: pytest.Pytester) -> None:
    result = run(project, "--gpuperf-json=results.json")
    assert f"gpuperf: results of 1 metric written to {project.path / 'results.json'}" in result.outlines


def test_a_broken_figure_is_no_candidate(project: pytest.Pytester) -> None:
    measure(project, 500e9)
    found = results(project)
    assert found.candidate.tests == {}
    assert [verdict.outcome.value for verdict in found.verdicts] == ["invalid"]


FAILING = {
    "teardown": ('perf.check(time=Metric(1.0, "s", "lower"))', "assert False", "the test failed: mend it"),
    "strict": (
        'request.applymarker(pytest.mark.xfail(strict=True)); perf.check(time=Metric(1.0, "s", "lower"))',
        "",
        "the test failed: mend it",
    ),
    "metrics": (
        'perf.check(**{"again" if "#" in request.node.name else "once": Metric(1.0, "s", "lower")})',
        "",
        "the results do not belong together: its metrics were ['once'] and are ['again']",
    ),
}


@pytest.mark.parametrize(("body", "teardown", "why"), FAILING.values(), ids=FAILING)
def test_a_test_that_is_left_out_is_told(project: pytest.Pytester, body: str, teardown: str, why: str) -> None:
    project.makepyfile(
        test_it=TEST
        + f"""
@pytest.fixture
def ending():
    yield
    {teardown}

@pytest.mark.perf
@pytest.mark.ranks(2)
def test_other(perf, request, ending):
    {body}
"""
    )
    result = run(project, "--gpuperf-json=results.json", "--update-baselines", "--reason=x")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert list(load(project.path / "results.json").candidate.tests) == [NODE]
    told = f"gpuperf: metrics of test_it.py::test_other[2ranks] left out of the results: {why}"
    assert told in result.outlines


def test_a_test_that_fails_by_its_verdict_is_in_the_results(project: pytest.Pytester) -> None:
    run(project, "--update-baselines", "--reason=x", "--launches=10")
    measure(project, 200e9)
    found = results(project)
    assert [verdict.outcome.value for verdict in found.verdicts] == ["regressed"]
    # One launch, as of all tests: which suspects have more of would choose what is recorded.
    assert len(found.candidate.tests[NODE].metrics["busbw"].launches) == 1


def test_a_smoke_run_has_verdicts_and_no_figures(project: pytest.Pytester) -> None:
    found = results(project, "--smoke")
    assert (found.candidate.tests, [verdict.outcome.value for verdict in found.verdicts]) == ({}, ["unjudged"])


def test_without_the_option_reports_carry_no_figures(project: pytest.Pytester) -> None:
    run(project, "--junitxml=report.xml")
    assert "gpuperf_candidate" not in (project.path / "report.xml").read_text()


def test_a_file_that_cannot_be_written_fails_the_run(project: pytest.Pytester) -> None:
    run(project, "--update-baselines", "--reason=x")
    (project.path / "out").write_text("a file in the folder's place")
    result = run(project, "--gpuperf-json=out/results.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["gpuperf: results not written to '*results.json': File exists: name another file with --gpuperf-json"]
    )


CONFTEST = """
import pytest
from tests import fake_gpus
patch = pytest.MonkeyPatch()
fake_gpus.install(patch, visible=2)
fake_gpus.without_ranks(patch)
"""


def test_the_workers_of_xdist_tell_what_they_measured(tmp_path: Path) -> None:
    many = TEST.replace("def test_speed(perf)", "@pytest.mark.parametrize('n', range(4))\ndef test_speed(perf, n)")
    write(tmp_path, {"test_it.py": many, "conftest.py": CONFTEST, "figures.txt": "3e11", "pytest.ini": "[pytest]\n"})
    run_pytest(tmp_path, "-n2", "--gpus=2", "--gpuperf-json=results.json")
    found = load(tmp_path / "results.json")
    assert len(found.candidate.tests) == len(found.verdicts) == 4
    assert found.candidate.hardware_key == KEY
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["results.json"]
