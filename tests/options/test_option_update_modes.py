"""``--update-baselines=MODE``: which entries a recording replaces; ``--accept-regression``."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.baselines.mode import Mode
from pytest_gpuperf.features.recording.options import RecordingOptions, read_recording_options
from tests.fake_gpus import without_ranks
from tests.options.test_option_gpus import usage_error
from tests.options.test_option_update_baselines import KEY, NODE, TEST, baselines, figures_of, measure, run
from tests.scripted_arms import repeat

OTHER = "test_it.py::test_other[2ranks]"
TWO = (
    TEST
    + """
@pytest.mark.perf
@pytest.mark.ranks(2)
def test_other(perf):
    perf.check(time=Metric(float(FIGURES.with_name("times.txt").read_text()), "s", "lower"))
"""
)

pytestmark = pytest.mark.usefixtures("eight_gpus")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Two tests with baselines of 300 GB/s and 1 s."""
    without_ranks(monkeypatch)
    repeat(monkeypatch, lambda: figures_of(pytester))
    pytester.makepyfile(test_it=TWO)
    measured(pytester, 300e9, 1.0)
    update(pytester, "", "first").assert_outcomes(passed=10)
    return pytester


def measured(project: pytest.Pytester, speed: float, time: float) -> None:
    measure(project, speed)
    (project.path / "times.txt").write_text(str(time))


def update(project: pytest.Pytester, mode: str, *more: str) -> pytest.RunResult:
    return run(project, f"--update-baselines{mode}", "--reason", *(more or ("second",)))


def stored(project: pytest.Pytester) -> Any:
    return json.loads(baselines(project).read_text())


def centers(project: pytest.Pytester) -> tuple[float, float]:
    tests = stored(project)["tests"]
    return tests[NODE]["metrics"]["busbw"]["center"], tests[OTHER]["metrics"]["time"]["center"]


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        (("--update-baselines",), Mode.MOVED),
        (("--update-baselines=moved",), Mode.MOVED),
        (("--update-baselines=new",), Mode.NEW),
        (("--update-baselines=all",), Mode.ALL),
        (("--update-baselines=append",), Mode.APPEND),
    ],
)
@pytest.mark.parametrize("path", ["suites/x", "all"])
def test_a_path_behind_the_flag_is_a_path(
    pytester: pytest.Pytester, arguments: tuple[str, ...], mode: Mode, path: str
) -> None:
    (pytester.path / path).mkdir(parents=True)
    (pytester.path / path / "pytest.ini").write_text("[pytest]\n")
    config = pytester.parseconfig("--gpus=2", "--reason=x", *arguments, path)
    assert config.args == [path]
    assert config.rootpath == pytester.path / path
    assert read_recording_options(config) == RecordingOptions(mode, reason="x")


def test_the_flag_may_stand_last_or_in_the_ini_file(pytester: pytest.Pytester) -> None:
    last = read_recording_options(pytester.parseconfig("--gpus=2", "--reason=x", "--update-baselines"))
    assert last == RecordingOptions(reason="x")
    pytester.makeini("[pytest]\naddopts = --update-baselines=new --reason=x")
    assert read_recording_options(pytester.parseconfig("--gpus=2")) == RecordingOptions(Mode.NEW, reason="x")


@pytest.mark.parametrize("mode", ["everything", "", "suites/x"])
def test_another_mode_is_a_usage_error_that_names_the_modes(pytester: pytest.Pytester, mode: str) -> None:
    result = pytester.runpytest_inprocess("--gpus=2", "--reason=x", f"--update-baselines={mode}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    names = "/".join(["--update-baselines", *(f"--update-baselines={mode.value}" for mode in Mode)])
    result.stderr.fnmatch_lines([f"*error: argument {names}: ignored explicit argument '{mode}'"])


@pytest.mark.parametrize("option", ["--accept-regression", "--resume", "--no-resume"])
def test_they_are_of_a_recording_only(pytester: pytest.Pytester, option: str) -> None:
    message = usage_error(pytester.runpytest_inprocess("--gpus=2", option))
    assert message == f"{option} is for a run that records baselines: add --update-baselines"


def test_what_moved_is_replaced_and_the_rest_stays_byte_for_byte(project: pytest.Pytester) -> None:
    before = stored(project)
    measured(project, 301e9, 0.98)
    result = update(project, "")
    assert result.ret == pytest.ExitCode.OK
    assert "1 tests left as they are: no centre moved by 0.5 %" in result.outlines
    assert f"baselines of 1 test written to {baselines(project)}" in result.outlines
    after = stored(project)
    assert after["tests"][NODE] == before["tests"][NODE]
    assert centers(project) == (300e9, 0.98)
    assert after["updates"][:1] == before["updates"]
    assert {key: after["updates"][1][key] for key in ("tests", "changed", "mode", "reason", "launches")} == {
        "tests": [OTHER],
        "changed": {OTHER: {"time": [1.0, 0.98]}},
        "mode": "moved",
        "reason": "second",
        "launches": 5,
    }


def test_where_nothing_moved_the_file_is_left(project: pytest.Pytester) -> None:
    before = baselines(project).read_bytes()
    result = update(project, "")
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines[-3:-1] == [
        "2 tests left as they are: no centre moved by 0.5 %",
        "no baselines written",
    ]
    assert baselines(project).read_bytes() == before


def test_new_writes_what_is_missing_and_counts_the_rest(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=TWO + TWO[TWO.rindex("@pytest.mark.perf") :].replace("test_other", "test_third"))
    measured(project, 400e9, 2.0)
    result = update(project, "=new")
    assert result.ret == pytest.ExitCode.OK
    assert "2 tests left as they are: they have baselines, and only new ones are asked" in result.outlines
    assert centers(project) == (300e9, 1.0)
    assert stored(project)["updates"][1]["tests"] == ["test_it.py::test_third[2ranks]"]


def test_new_writes_a_new_metric_of_a_test_that_has_a_baseline(project: pytest.Pytester) -> None:
    # The body that checks it is the same: whether the machine can tell it is another matter.
    (project.path / "conftest.py").write_text("""
import pytest
from pytest_gpuperf import Metric
@pytest.fixture(autouse=True)
def watched(request, perf):
    if "speed" in request.node.name:
        perf.check(energy=Metric(3.0, "J", "lower"))
""")
    before = stored(project)["tests"][NODE]["metrics"]["busbw"]
    measured(project, 400e9, 2.0)
    result = update(project, "=new")
    assert result.ret == pytest.ExitCode.OK
    metrics = stored(project)["tests"][NODE]["metrics"]
    assert metrics["busbw"] == before
    assert metrics["energy"]["center"] == 3.0
    assert len(metrics["energy"]["launches"]) == 5
    assert f"baselines of 1 test written to {baselines(project)}" in result.outlines


def test_all_replaces_all_that_ran(project: pytest.Pytester) -> None:
    measured(project, 300.1e9, 1.001)
    assert update(project, "=all").ret == pytest.ExitCode.OK
    assert centers(project) == (300.1e9, 1.001)


def test_append_adds_launches_fewer_than_five_too(project: pytest.Pytester) -> None:
    measured(project, 301e9, 1.0)
    assert run(project, "--update-baselines=append", "--launches=2", "--reason=more").ret == pytest.ExitCode.OK
    figures = stored(project)["tests"][NODE]["metrics"]["busbw"]["launches"]
    assert sorted(figure["median"] for figure in figures) == [300e9] * 5 + [301e9] * 2
    assert len(stored(project)["launches"]) == 7


def test_append_tells_what_it_cannot_append_to_and_fails(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=TWO.replace("samples=9", "samples=8"))
    before = stored(project)["tests"][NODE]
    result = update(project, "=append")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"not written: {NODE.replace('[', '[[]')}: its entry is stale: the test's body was *"])
    assert stored(project)["tests"][NODE] == before


@pytest.mark.parametrize("mode", ["", "=all"])
def test_a_loss_is_written_only_by_the_command_that_the_summary_names(project: pytest.Pytester, mode: str) -> None:
    before = stored(project)["tests"][NODE]
    measured(project, 250e9, 0.9)
    result = update(project, mode)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    command = f'pytest "{NODE}" --gpus 2 --update-baselines --accept-regression --reason "why"'
    loss = f"{NODE} busbw regressed: 300.0 GB/s -> 250.0 GB/s, 16.7 % worse, bound 5.0 %"
    assert f"not written: {loss}; accept it with: {command}" in result.outlines
    assert stored(project)["tests"][NODE] == before
    assert centers(project) == (300e9, 0.9)

    result = project.runpytest_inprocess(*shlex.split(command)[1:])
    assert result.ret == pytest.ExitCode.OK
    assert f"accepted: {loss}" in result.outlines
    assert centers(project) == (250e9, 0.9)
    assert stored(project)["updates"][-1]["accepted"] == [NODE]


def test_slower_launches_are_appended_only_by_the_command_that_the_summary_names(project: pytest.Pytester) -> None:
    measured(project, 250e9, 1.0)
    result = run(project, "--update-baselines=append", "--launches=3", "--reason=more")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    command = f'pytest "{NODE}" --gpus 2 --update-baselines=append --launches=3 --accept-regression --reason "why"'
    loss = f"{NODE} busbw regressed: 300.0 GB/s -> 250.0 GB/s, 16.7 % worse, bound 5.0 %"
    assert f"not written: {loss}; accept it with: {command}" in result.outlines
    assert len(stored(project)["tests"][NODE]["metrics"]["busbw"]["launches"]) == 5

    assert project.runpytest_inprocess(*shlex.split(command)[1:]).ret == pytest.ExitCode.OK
    assert len(stored(project)["tests"][NODE]["metrics"]["busbw"]["launches"]) == 8
    assert centers(project) == (300e9, 1.0)


def test_small_losses_that_add_up_are_told(project: pytest.Pytester) -> None:
    measured(project, 290e9, 1.0)
    assert update(project, "").ret == pytest.ExitCode.OK
    measured(project, 281e9, 1.0)
    result = update(project, "")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    anchor = stored(project)["tests"][NODE]["metrics"]["busbw"]["anchor"]
    line = (
        f"not written: {NODE} busbw drifted from its anchor of {anchor['at']}, commit {anchor['commit']}: "
        "300.0 GB/s -> 281.0 GB/s, 6.3 % worse, bound 5.0 %; accept it with: "
    )
    assert any(printed.startswith(line) for printed in result.outlines)
    assert centers(project) == (290e9, 1.0)


def expect(project: pytest.Pytester, **fields: object) -> None:
    """A reviewer writes that the speed is known to be regressed."""
    data = stored(project)
    known = {"status": "regressed", "reason": "a slow driver", "until": "2999-12-31", **fields}
    data["tests"][NODE]["expected"] = {"busbw": known}
    baselines(project).write_text(json.dumps(data))


def test_a_known_regression_passes_and_is_shown(project: pytest.Pytester) -> None:
    expect(project)
    measured(project, 250e9, 1.0)
    result = run(project, "--junitxml=report.xml")
    result.assert_outcomes(passed=2)
    assert f"expected until 2999-12-31: {NODE} busbw: a slow driver" in result.outlines
    assert f"2 metrics on {KEY}: 1 expected, 1 same" in result.outlines
    assert "&quot;outcome&quot;: &quot;expected&quot;" in (project.path / "report.xml").read_text()


@pytest.mark.parametrize("fields", [{"until": "2020-01-01"}, {"center": 290e9}], ids=["past", "worse"])
def test_a_regression_that_is_no_longer_covered_fails_and_says_what_was_expected(
    project: pytest.Pytester, fields: dict[str, object]
) -> None:
    expect(project, **fields)
    measured(project, 250e9, 1.0)
    result = run(project)
    result.assert_outcomes(passed=1, failed=1)
    at = " at 290.0 GB/s" if "center" in fields else ""
    until = fields.get("until", "2999-12-31")
    assert f"  it was expected{at} until {until}: a slow driver" in result.outlines


def test_an_expectation_that_nothing_needs_is_told(project: pytest.Pytester) -> None:
    expect(project)
    result = run(project)
    result.assert_outcomes(passed=2)
    line = f'no longer regressed: {NODE} busbw: delete its entry under "expected" in the baselines'
    assert line in result.outlines


def test_an_expectation_that_is_written_wrongly_stops_the_run(project: pytest.Pytester) -> None:
    expect(project, until="soon")
    message = usage_error(run(project))
    place = f"baselines '{baselines(project)}': file.tests['{NODE}'].expected.busbw.until: "
    assert message.startswith(f"{place}got 'soon', expected a date as YYYY-MM-DD: write for example ")


def test_help_shows_the_modes(pytester: pytest.Pytester) -> None:
    text = " ".join(pytester.runpytest_inprocess("--help").stdout.str().split())
    assert "--update-baselines, --update-baselines=moved, --update-baselines=new, --update-baselines=all" in text


def test_the_files_of_a_recording_are_the_baselines_alone(project: pytest.Pytester) -> None:
    left = {path.name for path in Path(baselines(project).parent).iterdir()}
    assert left - {f".{KEY}.json.lock"} == {f"{KEY}.json"}
