"""``--update-baselines``: what is written, what keeps a file as it is, and what a later run makes of it."""

import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.baselines.json_files import load
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.inspection import GpuFacts, Inspection
from pytest_gpuperf.run.current_ranks import CurrentRanks
from tests.fake_gpus import install, without_ranks
from tests.hardware.fake_devices import FakeDevices
from tests.options.test_option_gpus import usage_error
from tests.scripted_arms import repeat

KEY = "2x-nvidia-h200-nv18"
TEST = """
import pathlib
import pytest
from pytest_gpuperf import Metric
FIGURES = pathlib.Path(__file__).with_name("figures.txt")
@pytest.mark.perf
@pytest.mark.ranks(2)
def test_speed(perf):
    perf.check(busbw=Metric(float(FIGURES.read_text()), "B/s", "higher", samples=9, limit=450e9, clock="host"))
"""
NODE = "test_it.py::test_speed[2ranks]"
SLOWER = "busbw 200.0 GB/s: 33.3 % slower than 300.0 GB/s, *"

pytestmark = pytest.mark.usefixtures("eight_gpus")


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:  # the figures come from a file
    without_ranks(monkeypatch)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    repeat(monkeypatch, lambda: figures_of(pytester))
    pytester.makepyfile(test_it=TEST)
    measure(pytester, 300e9)
    return pytester


def measure(project: pytest.Pytester, figure: float) -> None:
    """The next run finds this figure."""
    (project.path / "figures.txt").write_text(str(figure))


def figures_of(project: pytest.Pytester) -> dict[str, Metric]:
    """What later launches come to."""
    value = float((project.path / "figures.txt").read_text())
    return {"busbw": Metric(value, "B/s", "higher", samples=9, limit=450e9, clock="host")}


def run(project: pytest.Pytester, *more: str) -> pytest.RunResult:
    return project.runpytest_inprocess("--gpus=2", *more)


def record(project: pytest.Pytester, *more: str) -> pytest.RunResult:
    return run(project, "--update-baselines", "--reason=first", *more)


def baselines(project: pytest.Pytester) -> Path:
    return project.path / "baselines" / f"{KEY}.json"


def test_it_needs_gpus(pytester: pytest.Pytester) -> None:
    message = usage_error(pytester.runpytest_inprocess("--update-baselines"))
    assert message == "baselines are recorded on GPUs only: add --gpus N"


def test_no_single_launch_of_a_test_is_picked(project: pytest.Pytester) -> None:
    assert usage_error(record(project, "--lf")) == (
        "--update-baselines runs every test once in each launch, and --lf picks single launches: drop --lf"
    )
    run(project, "--lf", "--collect-only").assert_outcomes()  # of a run that records nothing, it may
    assert record(project, "-p", "no:cacheprovider").ret == pytest.ExitCode.OK  # which brings the option


def test_a_recording_is_written_and_the_next_run_is_judged_by_it(project: pytest.Pytester) -> None:
    result = record(project)
    result.assert_outcomes(passed=5)
    assert f"baselines of 1 test written to {baselines(project)}" in result.outlines
    stored = load(baselines(project), KEY)
    assert stored is not None
    assert stored.match["gpu_count"] == 2
    assert list(stored.tests) == [NODE]
    figures = stored.tests[NODE].metrics["busbw"].launches
    assert [figure.median for figure in figures] == [300e9] * 5
    assert len({figure.launch for figure in figures}) == 5
    assert {info.environment["driver"] for info in stored.launches.values()} == {"570.86"}
    (update,) = stored.updates
    assert (update.reason, update.tests, update.launches) == ("first", (NODE,), 5)

    result = run(project)
    result.assert_outcomes(passed=1)
    assert f"1 metric on {KEY}: 1 same" in result.outlines


@pytest.mark.parametrize(
    ("figure", "outcome", "line"),
    [
        (
            250e9,
            {"failed": 1},
            "busbw 250.0 GB/s: 16.7 % slower than 300.0 GB/s, by the baseline alone",
        ),
        (297e9, {"passed": 1}, f"1 metric on {KEY}: 1 same"),
        (400e9, {"passed": 1}, f"1 metric on {KEY}: 1 improved"),
        (
            500e9,
            {"failed": 1},
            "busbw 500.0 GB/s: above the physical limit 450.0 GB/s",
        ),
    ],
    ids=["regressed", "same", "improved", "broken"],
)
def test_a_later_run_is_judged(project: pytest.Pytester, figure: float, outcome: dict[str, int], line: str) -> None:
    record(project)
    measure(project, figure)
    result = run(project)
    result.assert_outcomes(**outcome)
    assert line in result.outlines


def test_a_missing_baseline_fails_and_the_command_it_names_records_it(project: pytest.Pytester) -> None:
    result = run(project, "--strict-baselines")
    result.assert_outcomes(failed=1)
    command = f'pytest "{NODE}" --gpus 2 --update-baselines --reason "why"'
    assert f"FAILED {NODE} - busbw 300.0 GB/s: no baseline on {KEY}"[:75] in result.stdout.str()
    first = result.outlines.index(f"busbw 300.0 GB/s: no baseline on {KEY}")
    assert result.outlines[first + 1 : first + 3] == [
        "  nothing says what it should be: no share of its limit is known that healthy hardware reaches",
        f"  record one with: {command}",
    ]
    project.runpytest_inprocess(*shlex.split(command)[1:]).assert_outcomes(passed=5)
    run(project).assert_outcomes(passed=1)


def test_a_variable_that_was_not_set_before_is_named(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    record(project)
    measure(project, 200e9)
    software = {"torch": "2.13.0", "NCCL_MAX_NCHANNELS": "12"}
    monkeypatch.setattr(CurrentRanks, "_read_software", lambda self, size: software)
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([SLOWER, "  what differs: NCCL_MAX_NCHANNELS not set -> 12"])


def test_the_numa_nodes_of_a_slower_run_are_named(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = {"GPU-0": (0, 1), "GPU-1": (2, 3)}
    told = Inspection(gpus=tuple(GpuFacts(uuid, cores=near) for uuid, near in cores.items()))
    monkeypatch.setattr(FakeDevices, "cores", lambda self, uuid: frozenset(cores.get(uuid, ())))
    monkeypatch.setattr(FakeDevices, "inspect", lambda self: told)
    monkeypatch.setattr("pytest_gpuperf.hardware.machine.read_nodes", lambda: {"0": (0, 1), "1": (2, 3)})
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    record(project)
    measure(project, 200e9)
    result = run(project, "--no-numa-binding")
    result.stdout.fnmatch_lines([SLOWER, "  what differs: numa binding on -> off"])
    cores["GPU-1"] = (0, 1)
    moved = Inspection(gpus=tuple(GpuFacts(uuid, cores=(0,)) for uuid in cores))
    monkeypatch.setattr(FakeDevices, "inspect", lambda self: moved)
    result = run(project)
    result.stdout.fnmatch_lines([SLOWER, "  what differs: gpu numa nodes 0, 1 -> 0"])
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    result = run(project)
    differ = "gpu numa nodes 0, 1 -> 0, numa binding on -> off, cpu numa nodes 0, 1 -> 0, cpu cores 4 -> 2"
    result.stdout.fnmatch_lines([SLOWER, f"  what differs: {differ}"])


def test_a_record_that_tells_no_numa_nodes_differs_in_none(project: pytest.Pytester) -> None:
    record(project)
    path = project.path / "baselines" / f"{KEY}.json"
    stored = json.loads(path.read_text())
    for launch in stored["launches"].values():
        assert launch["environment"].pop("numa binding") == "off"
        launch["environment"].pop("cpu numa nodes", None)
    path.write_text(json.dumps(stored))
    measure(project, 200e9)
    result = run(project)
    result.stdout.fnmatch_lines([SLOWER])
    assert "what differs" not in result.stdout.str()


def test_a_test_that_changed_has_a_stale_baseline(project: pytest.Pytester) -> None:
    record(project)
    project.makepyfile(test_it=TEST.replace("    perf.check", "    # a comment changes nothing\n\n    perf.check"))
    run(project).assert_outcomes(passed=1)
    project.makepyfile(test_it=TEST.replace("samples=9", "samples=10"))
    result = run(project)
    result.assert_outcomes(failed=1)
    first = result.outlines.index("busbw 300.0 GB/s: stale baseline: the test's body has changed since")
    command = f'pytest "{NODE}" --gpus 2 --update-baselines --reason "why"'
    assert result.outlines[first + 1] == f"  record one with: {command}"


def test_of_a_figure_that_scatters_widely_it_is_said_what_is_seen(project: pytest.Pytester) -> None:
    record(project)
    data = json.loads(baselines(project).read_text())
    for index, figure in enumerate(data["tests"][NODE]["metrics"]["busbw"]["launches"]):
        figure["median"] = 300e9 * (1 + 0.1 * index)
    baselines(project).write_text(json.dumps(data))
    result = run(project, "-v")
    result.assert_outcomes(passed=1)
    assert f"1 metric on {KEY}: 1 unjudged" in result.outlines


def test_a_broken_figure_is_not_recorded(project: pytest.Pytester) -> None:
    measure(project, 500e9)
    result = record(project)
    result.assert_outcomes(failed=5)
    assert "no baselines written" in result.outlines
    assert not baselines(project).exists()


FLAKY = "test_it.py::test_flaky[2ranks]"
LEFT_OUT = {
    "body": (
        'assert "#3" not in name',
        "",
        "it failed in launch 3 of 5: record it again once it passes in all of them",
    ),
    "teardown": (
        "",
        'assert "#3" not in name',
        "it failed in launch 3 of 5: record it again once it passes in all of them",
    ),
    "skip": (
        'if "#3" in name: pytest.skip("not today")',
        "",
        "it was skipped in launch 3 of 5: record it again once it passes in all of them",
    ),
    "expected failure": (
        'if "#3" in name: pytest.xfail("not today")',
        "",
        "it failed in launch 3 of 5: record it again once it passes in all of them",
    ),
    "strict": (
        'if "#3" in name: request.applymarker(pytest.mark.xfail(strict=True))',
        "",
        "it failed in launch 3 of 5: record it again once it passes in all of them",
    ),
    "metric": (
        'if "#3" not in name: perf.check(energy=Metric(1.0, "J", "lower"))',
        "",
        "it checked no 'energy' in launch 3 of 5, as it did in others: let it check the same metrics in each",
    ),
}


@pytest.mark.parametrize(("body", "teardown", "why"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_test_that_is_not_well_in_one_launch_is_not_written_and_the_run_fails(
    project: pytest.Pytester, body: str, teardown: str, why: str
) -> None:
    project.makepyfile(
        test_it=TEST
        + f"""
@pytest.fixture
def ending(request):
    name = request.node.name
    yield
    {teardown}

@pytest.mark.perf
@pytest.mark.ranks(2)
def test_flaky(perf, request, ending):
    name = request.node.name
    {body}
    perf.check(time=Metric(1.0, "s", "lower"))
"""
    )
    result = record(project)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert f"not written: {FLAKY}: {why}" in result.outlines
    stored = load(baselines(project), KEY)
    assert stored is not None
    assert list(stored.tests) == [NODE]


def test_what_is_skipped_in_every_launch_is_no_failed_recording(project: pytest.Pytester) -> None:
    skipped = TEST[TEST.index("@pytest.mark.perf") :].replace("test_speed", "test_of_sixteen").replace("(2)", "(16)")
    project.makepyfile(test_it=TEST + skipped)
    result = record(project)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=5, skipped=1)
    assert "not written" not in result.stdout.str()


def good_file(**changes: object) -> str:
    data: dict[str, Any] = {"schema": 1, "hardware_key": KEY, "match": {}, "launches": {}, "tests": {}, "updates": []}
    return json.dumps({**data, **changes})


BROKEN = {
    "empty": ("", "got an empty file, expected JSON"),
    "truncated": (good_file()[:-10], "got no valid JSON"),
    "text": ("these are not the metrics you are looking for", "got no valid JSON"),
    "newer": (good_file(schema=99), "schema 99 is newer than this version reads (2): upgrade pytest-gpuperf"),
    "other hardware": (good_file(hardware_key="8x-other"), f"got '8x-other', expected '{KEY}'"),
    "other fields": (good_file(tests=[]), "file.tests: got [], expected an object"),
}


@pytest.mark.parametrize("options", [(), ("--update-baselines", "--reason=x")], ids=["judged", "recorded"])
@pytest.mark.parametrize(("content", "problem"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_stops_the_run_and_stays_as_it_is(
    project: pytest.Pytester, content: str, problem: str, options: tuple[str, ...]
) -> None:
    baselines(project).parent.mkdir()
    baselines(project).write_text(content)
    result = run(project, *options)
    message = usage_error(result)
    assert message.startswith(f"baselines '{baselines(project)}': ")
    assert problem in message
    assert baselines(project).read_text() == content
    assert "FAILED" not in result.stdout.str()


@pytest.mark.parametrize("options", [("--collect-only",), ("-k", "nothing"), ("-m", "not perf")])
def test_a_broken_file_is_no_matter_where_nothing_is_measured(
    project: pytest.Pytester, options: tuple[str, ...]
) -> None:
    baselines(project).parent.mkdir()
    baselines(project).write_text("")
    project.makepyfile(test_plain="def test_plain(): pass")
    assert run(project, *options).ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def test_a_folder_that_cannot_be_read_is_seen_before_anything_is_measured(project: pytest.Pytester) -> None:
    (project.path / "baselines").write_text("a file in the folder's place")
    result = run(project, "--update-baselines", "--reason=x", "--baselines=baselines/deeper")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_recording_that_can_no_longer_be_written_goes_elsewhere_and_the_run_fails(
    project: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    project.makeconftest(
        """
        import shutil

        def pytest_runtest_teardown(item):
            folder = item.config.rootpath / "baselines"
            shutil.rmtree(folder, ignore_errors=True)
            folder.write_text("a file in the folder's place")
        """
    )
    result = record(project)
    result.assert_outcomes(passed=5)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"baselines '{baselines(project)}': cannot be written: *", "baselines of 1 test *"])
    (line,) = [line for line in result.outlines if line.startswith("baselines of 1 test written to ")]
    elsewhere = Path(line.removeprefix("baselines of 1 test written to "))
    stored = load(elsewhere, KEY)
    assert stored is not None
    assert list(stored.tests) == [NODE]
    assert tmp_path in elsewhere.parents


def test_verdicts_are_properties_of_the_report(project: pytest.Pytester) -> None:
    record(project)
    measure(project, 250e9)
    run(project, "--junitxml=report.xml")
    text = (project.path / "report.xml").read_text()
    assert '<property name="gpuperf" value="' in text
    assert "regressed" in text
    assert '<testsuite name="pytest" errors="0" failures="1"' in text


def test_a_smaller_minimum_slowdown_finds_more(project: pytest.Pytester) -> None:
    record(project)
    measure(project, 250e9)
    run(project, "-o", "gpuperf_minimum_slowdown=0.5", "-o", "gpuperf_minimum_effect=0.3").assert_outcomes(passed=1)
    run(project, "-o", "gpuperf_minimum_slowdown=0.04").assert_outcomes(failed=1)


def test_a_minimum_slowdown_that_no_launches_could_see_is_refused(project: pytest.Pytester) -> None:
    message = usage_error(run(project, "-o", "gpuperf_minimum_slowdown=0.01"))
    assert message.startswith(
        "ini keys gpuperf_minimum_slowdown and gpuperf_minimum_effect: policy minimum_slowdown is 0.01, but "
        "minimum_effect"
    )
    assert message.endswith("raise minimum_slowdown, or lower minimum_effect")


@pytest.mark.parametrize("key", ["gpuperf_minimum_slowdown", "gpuperf_timeout"])
@pytest.mark.parametrize("value", ["0", "-1", "much", "nan", "inf", ""])
def test_an_ini_value_that_is_no_positive_number_is_refused(pytester: pytest.Pytester, key: str, value: str) -> None:
    message = usage_error(pytester.runpytest_inprocess("-o", f"{key}={value}"))
    assert message == f"ini key {key} must be a positive number, got {value!r}"


def test_without_a_visible_gpu_there_is_nothing_to_record(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, visible=0)
    result = pytester.runpytest_inprocess("--gpus=auto", "--update-baselines", "--reason=x")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --update-baselines records on GPUs only, and no GPU is visible"])
