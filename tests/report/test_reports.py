"""What whole runs tell pytest-benchmark, JUnit, GitHub and the terminal. GPUs, ranks and samples are made up."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.whole_run import environment, run_pytest, write

KEY = "2x-nvidia-h200-nv18"

CONFTEST = """
import os, sys, types
import pytest
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.figures.timing import RankSamples
from tests import fake_gpus

patch = pytest.MonkeyPatch()
fake_gpus.install(patch, visible=int(os.environ.get("TEST_GPUS", 2)))
fake_gpus.without_ranks(patch)
FACTOR = float(os.environ.get("TEST_FACTOR", 1))

def samples(seconds):
    return RankSamples(tuple(seconds * FACTOR * (1 + i / 100) for i in range(11)), "cuda_event", False, 1)

def tuple_of(*values): return values
def measure(): ...
def compare(): ...

def run(self, world_size, entry, args, kwargs, program):
    if entry is compare:
        return [(samples(3e-3), samples(1e-3 * (1 + rank))) for rank in range(world_size)]
    return [samples(1e-3 * (1 + rank)) for rank in range(world_size)]

# What would run on the ranks loads torch, which takes longer than all the rest.
for module, contents in ("measure", {"measure": measure}), ("compare", {"compare": compare, "Tolerance": tuple_of}):
    name = f"pytest_gpuperf.timing.{module}"
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(contents)

patch.setattr(CurrentRanks, "_execute", run)

if os.environ.get("TEST_BROKEN"):
    @pytest.fixture
    def benchmark(request):
        return request.node._of_yesterday  # as one does that knows an older pytest
"""

TESTS = """
import pytest
from pytest_gpuperf import GiB, Metric

pytestmark = pytest.mark.ranks(2)

def program(ctx): ...
def other(ctx): ...

def test_steady(perf):
    timing = perf.measure(program)
    perf.measure(other)
    perf.check(time=timing.time, busbw=timing.busbw("all_reduce", GiB // 4))

@pytest.mark.benchmark(group="races", min_rounds=3)
def test_race(perf):
    pair = perf.compare(baseline=program, optimized=other)
    perf.check(speedup=pair.speedup)
    perf.show(plain=pair.baseline.time)

def test_of_its_own(perf, benchmark):
    perf.check(time=perf.measure(program).time)
    assert benchmark(lambda: 7) == 7

def test_takes_one_by_name(perf, request):
    perf.check(time=perf.measure(program).time)
    request.getfixturevalue("benchmark").pedantic(lambda: 7)

def test_without_timing(perf):
    perf.check(score=Metric(5.0, "points/s", "higher"))

def test_broken(perf):
    perf.check(busbw=perf.measure(program).busbw("all_reduce", 100 * GiB))

def test_correct(ranks):
    pass

def test_plain(benchmark):
    benchmark(lambda: None)
"""
HOT = """
import pytest
from pytest_gpuperf import Metric
from pytest_gpuperf.figures.conditions import Conditions, Gate, Tripped

pytestmark = pytest.mark.ranks(2)

def program(ctx): ...

@pytest.fixture
def brake(monkeypatch):
    tripped = Conditions((Tripped("GPU-1", Gate.POWER_BRAKE),), power_capped=False)
    monkeypatch.setattr("pytest_gpuperf.run.current_ranks.make_conditions", lambda *_: tripped)
    monkeypatch.setattr("pytest_gpuperf.api.perf.PAUSE", 0.0)

def test_checked(perf, brake):
    perf.check(time=perf.measure(program).time)

def test_not_checked(perf, brake):
    perf.measure(program)
    perf.check(score=Metric(5.0, "points/s", "higher"))

def test_shown(perf, request):
    timing = perf.measure(program)
    request.getfixturevalue("brake")
    perf.check(time=timing.time)
    perf.show(later=perf.measure(program).time)

def test_fit(perf):
    perf.check(time=perf.measure(program).time)
"""
FAST = "--benchmark-max-time=0.001", "--benchmark-min-rounds=1"


def folder(path: Path) -> Path:
    return write(path, {"conftest.py": CONFTEST, "test_it.py": TESTS, "pytest.ini": "[pytest]\nmarkers = benchmark\n"})


def rows(path: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(path.read_text())["benchmarks"]}


class Reported:
    """A recording, and a run that is judged by it and is slower, with all reports asked for."""

    def __init__(self, path: Path) -> None:
        self.path = folder(path)
        select = "-k", "not broken and not plain"
        self.recording = run_pytest(
            self.path,
            "--gpus=2",
            "--update-baselines",
            "--reason=first",
            "--benchmark-json=recorded.json",
            *select,
            *FAST,
        )
        self.summary = path / "summary.md"
        self.summary.write_text("before\n")
        self.run = run_pytest(
            self.path,
            "--gpus=2",
            "--junitxml=report.xml",
            "--benchmark-json=judged.json",
            "--benchmark-save=judged",
            "--benchmark-storage=saved",
            *FAST,
            env={
                "TEST_FACTOR": "1.5",
                "GITHUB_ACTIONS": "true",
                "GITHUB_STEP_SUMMARY": str(self.summary),
                "GITHUB_WORKSPACE": str(self.path.parent),
            },
        )
        self.json = json.loads((self.path / "judged.json").read_text())
        self.rows = rows(self.path / "judged.json")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    return Reported(tmp_path_factory.mktemp("reported"))


def test_the_samples_of_the_first_timing_are_a_benchmark_to_the_last_bit(reported: Reported) -> None:
    steady = reported.rows["test_steady[2ranks]"]
    assert steady["stats"]["data"] == [2e-3 * 1.5 * (1 + i / 100) for i in range(11)]
    assert (steady["stats"]["rounds"], steady["stats"]["iterations"]) == (11, 1)
    assert steady["options"]["timer"] == "cuda_event"
    assert steady["group"] == "2 ranks"
    assert steady["fullname"] == "test_it.py::test_steady[2ranks]"


def test_of_a_race_it_is_the_optimized_arm_and_the_users_marker_stays(reported: Reported) -> None:
    race = reported.rows["test_race[2ranks]"]
    assert race["stats"]["data"][0] == 2e-3 * 1.5
    assert race["group"] == "races"


def test_what_else_was_measured_and_the_verdicts_go_with_it(reported: Reported) -> None:
    info = reported.rows["test_steady[2ranks]"]["extra_info"]
    assert {key: info[key] for key in ("hardware_key", "world_size", "clock")} == {
        "hardware_key": KEY,
        "world_size": 2,
        "clock": "cuda_event",
    }
    assert set(info["metrics"]) == {"time", "busbw"}
    busbw = info["metrics"]["busbw"]
    assert busbw["value"] == pytest.approx(2**28 / 2e-3 / 1.5 / 1.05)
    assert busbw["q1"] < busbw["value"] < busbw["q3"]
    assert (busbw["unit"], busbw["better"], busbw["limit"]) == ("B/s", "higher", 450e9)
    assert busbw["verdict"] == "regressed"
    assert busbw["baseline"] == pytest.approx(2**28 / 2e-3 / 1.05, rel=1e-4)
    assert busbw["change"] == pytest.approx(-1 / 3, rel=1e-3)
    race = reported.rows["test_race[2ranks]"]["extra_info"]["metrics"]
    assert {name: metric["verdict"] for name, metric in race.items()} == {"speedup": "same", "plain": "unjudged"}


def test_a_recording_has_one_benchmark_for_each_test_too(reported: Reported) -> None:
    recorded = rows(reported.path / "recorded.json")
    assert [name for name in recorded if "steady" in name] == ["test_steady[2ranks]"]
    assert recorded["test_steady[2ranks]"]["extra_info"]["metrics"]["time"]["verdict"] == "recorded"


def test_a_benchmark_of_the_tests_own_stays_as_it_is(reported: Reported) -> None:
    for name in ("test_of_its_own[2ranks]", "test_takes_one_by_name[2ranks]"):
        row = reported.rows[name]
        assert row["options"]["timer"] == "perf_counter"
        assert "metrics" not in row["extra_info"]


def test_what_measured_no_time_or_a_wrong_one_is_no_benchmark(reported: Reported) -> None:
    # A benchmark of a test's own runs in each of its launches.
    assert {name for name in reported.rows if "#" not in name} == {
        *(f"test_{name}[2ranks]" for name in ("steady", "race", "of_its_own", "takes_one_by_name")),
        "test_plain",
    }
    assert not {name for name in reported.rows if "#" in name and "steady" in name}
    assert reported.run.outcomes["test_broken[2ranks]"] == "FAILED"


def test_what_was_measured_on_a_machine_that_was_not_fit_is_no_benchmark(tmp_path: Path) -> None:
    path = write(tmp_path, {"conftest.py": CONFTEST, "test_hot.py": HOT, "pytest.ini": "[pytest]\n"})
    run = run_pytest(path, "--gpus=2", "--benchmark-json=hot.json", "--strict-baselines", *FAST)
    names = {f"test_{name}[2ranks]" for name in ("checked", "not_checked", "shown", "fit")}
    assert run.outcomes == dict.fromkeys(names, "FAILED")  # none has a baseline
    assert set(rows(path / "hot.json")) == {"test_fit[2ranks]"}


def test_the_table_shows_them(reported: Reported) -> None:
    groups = [line for line in reported.run.result.outlines if re.match(r"-+ benchmark '", line)]
    assert len(groups) == 2
    assert any(re.match(r"test_steady\[2ranks\] +3\.0\d", line) for line in reported.run.result.outlines)
    assert reported.run.section("gpuperf")[-1].startswith(f"8 metrics on {KEY}: ")


@pytest.mark.parametrize("ini", ["", "addopts = --benchmark-sort=name\n"], ids=["nobody asks", "addopts ask"])
def test_the_table_has_perf_tests_only_if_an_option_asks_for_benchmarks(reported: Reported, ini: str) -> None:
    (reported.path / "other.ini").write_text(f"[pytest]\nmarkers = benchmark\n{ini}")
    run = run_pytest(reported.path, "--gpus=2", "-c", "other.ini", "-k", "steady or plain")
    shown = [line.split()[0] for line in run.result.outlines if re.match(r"test_\w+(\[2ranks\])? +\d", line)]
    assert set(shown) == {"test_plain", *(["test_steady[2ranks]"] if ini else [])}, run.text


def test_the_machine_is_named_and_nothing_of_it_changes_by_itself(reported: Reported) -> None:
    machine = reported.json["machine_info"]
    assert machine["gpuperf"] == {
        "hardware_key": KEY,
        "gpus": ["NVIDIA H200"],
        "gpu_count": 2,
        "driver": "570.86",
    }
    assert machine["cpu"]
    assert not {"hz_actual", "hz_actual_friendly"} & set(machine["cpu"])
    assert reported.json["gpuperf"]["hardware_key"] == KEY
    assert {"torch", "driver"} <= set(reported.json["gpuperf"]["software"])


def test_pytest_benchmarks_own_command_reads_and_compares_them(reported: Reported) -> None:
    command = [sys.executable, "-m", "pytest_benchmark", "compare", "recorded.json", "judged.json", "--name=long"]
    done = subprocess.run(
        command, cwd=reported.path, env=environment(), capture_output=True, text=True, timeout=120, check=True
    )
    named = [line.partition(" ")[0] for line in done.stdout.splitlines() if "::test_steady[2ranks]" in line]
    assert len(named) == 2, done.stdout


def test_a_later_run_compares_itself_with_a_saved_one(reported: Reported) -> None:
    arguments = "--benchmark-storage=saved", "--benchmark-compare", "-Werror", *FAST, "-k", "steady"
    run = run_pytest(reported.path, "--gpus=2", *arguments)
    assert run.result.ret == 0, run.text
    assert any(re.match(r"test_steady\[2ranks\] \(NOW\)", line) for line in run.result.outlines)


def test_a_comparison_with_other_hardware_is_refused(reported: Reported) -> None:
    run = run_pytest(
        reported.path, "--gpus=4", "--benchmark-storage=saved", "--benchmark-compare", env={"TEST_GPUS": "4"}
    )
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(
        rf"ERROR: --benchmark-compare: the saved run of \d{{4}}-\S+ is of '{KEY}', expected '4x-nvidia-h200-nv18', "
        r"which this run uses: name a run of this hardware \(--benchmark-compare=NUM\), or give each hardware a "
        "--benchmark-storage of its own",
        run.text,
    )


def test_a_run_without_gpus_may_compare_what_needs_none(reported: Reported) -> None:
    run = run_pytest(reported.path, "--benchmark-storage=saved", "--benchmark-compare", *FAST, "-k", "plain")
    assert run.result.ret == 0, run.text
    assert "test_plain (NOW)" in run.text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--benchmark-disable",), "PASSED"),
        (("--benchmark-cprofile=cumtime",), "PASSED"),
        (("--benchmark-only",), "PASSED"),
        (("--benchmark-skip",), "SKIPPED"),
        (("-p", "no:benchmark"), "PASSED"),
        (("-p", "codspeed"), "PASSED"),
        (("-n1",), "PASSED"),
    ],
)
def test_perf_tests_are_judged_whatever_pytest_benchmark_does(
    reported: Reported, arguments: tuple[str, ...], expected: str
) -> None:
    codspeed = """
import pytest

class CodSpeed:
    is_codspeed_enabled = True

@pytest.fixture
def benchmark():
    assert False, "no test asked for it"

def pytest_configure(config):
    config.pluginmanager.register(CodSpeed(), "codspeed_plugin")
"""
    # Nothing of ours may import what need not be there.
    absent = "import sys\nif sys.argv.count('no:benchmark'):\n    sys.modules['pytest_benchmark'] = None\n"
    write(reported.path, {"codspeed.py": codspeed, "conftest.py": absent + CONFTEST})
    run = run_pytest(
        reported.path, "--gpus=2", "-Werror", "-k", "steady or correct", *arguments, env={"PYTHONPATH": _path(reported)}
    )
    assert run.result.ret == 0, run.text
    if arguments != ("-n1",):
        assert run.outcomes["test_steady[2ranks]"] == expected
        assert run.outcomes["test_correct[2ranks]"] == ("SKIPPED" if arguments == ("--benchmark-only",) else "PASSED")
    shown = "2 metrics on" in run.text
    assert shown is (expected == "PASSED")
    published = any(line.startswith("test_steady[2ranks]  ") for line in run.result.outlines)
    assert published is (arguments[0] in ("--benchmark-only", "--benchmark-cprofile=cumtime"))


@pytest.mark.parametrize("arguments", [(), ("--benchmark-skip",)])
def test_a_smoke_run_publishes_nothing_and_tries_every_body(reported: Reported, arguments: tuple[str, ...]) -> None:
    run = run_pytest(reported.path, "--smoke", "-Werror", "-k", "steady", *arguments)
    assert run.outcomes == {"test_steady[2ranks]": "PASSED"}, run.text
    assert not any(re.match(r"-+ benchmark", line) for line in run.result.outlines)


def test_a_pytest_benchmark_that_breaks_spoils_no_figure(reported: Reported) -> None:
    run = run_pytest(reported.path, "--gpus=2", "-k", "steady", env={"TEST_BROKEN": "1"})
    assert run.outcomes == {"test_steady[2ranks]": "PASSED"}, run.text
    assert (
        "PytestWarning: test_it.py::test_steady[2ranks] is no benchmark, since pytest-benchmark raised AttributeError: "
        "'Function' object has no attribute '_of_yesterday'; expected one that goes with this pytest: upgrade "
        "pytest-benchmark, or pass -p no:benchmark"
    ) in run.text


def test_junit_has_each_figure_in_plain_numbers(reported: Reported) -> None:
    cases = ElementTree.parse(reported.path / "report.xml").getroot().iter("testcase")
    (steady,) = [case for case in cases if case.attrib["name"] == "test_steady[2ranks]"]
    found = {item.attrib["name"]: item.attrib["value"] for item in steady.iter("property")}
    assert json.loads(found.pop("gpuperf"))[0]["outcome"] == "regressed"
    assert found == {
        "gpuperf.time.value": "0.00315",
        "gpuperf.time.unit": "s",
        "gpuperf.time.verdict": "regressed",
        "gpuperf.time.baseline": "0.0021",
        "gpuperf.time.change": "+50.0 % time",
        "gpuperf.busbw.value": "8.52176e+10",
        "gpuperf.busbw.unit": "B/s",
        "gpuperf.busbw.verdict": "regressed",
        "gpuperf.busbw.baseline": "1.2783e+11",
        "gpuperf.busbw.change": "-33.3 % GB/s",
    }


def test_the_job_summary_tells_all_figures_worst_first(reported: Reported) -> None:
    before, heading, _, tests, _, figures, _, head, _, *lines = reported.summary.read_text().splitlines()
    assert (before, heading) == ("before", "### gpuperf")
    assert tests == "7 tests on ranks: 4 failed, 3 passed, 0 skipped"
    assert re.fullmatch(rf"8 metrics on {KEY}: 1 invalid, 4 regressed, 2 same, 1 unjudged", figures)
    assert head == "| verdict | value | baseline | change | spread | of limit | test and metric |"
    assert [line.split()[1] for line in lines] == ["invalid"] + ["regressed"] * 4 + ["same"] * 2 + ["unjudged"]
    assert (
        "| regressed | 3.150 ms | 2.100 ms | +50.0 % time | 0.0 % |  | "
        "<code>test_it.py::test_steady&#91;2ranks&#93;</code> <code>time</code> |"
    ) in lines


def test_annotations_stand_at_the_tests_in_the_repository(reported: Reported) -> None:
    errors = [line for line in reported.run.result.outlines if line.startswith("::error ")]
    assert len(errors) == 5
    line = TESTS.splitlines().index("def test_steady(perf):") + 1
    start = f"::error file={reported.path.name}/test_it.py,line={line},title=regressed%3A "
    assert f"{start}test_it.py%3A%3Atest_steady[2ranks] time::time 3.150 ms: 50.0 %25 slower than 2.100 ms, " in (
        "\n".join(errors)
    )


def test_the_controller_alone_tells_github(reported: Reported, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    variables = {"TEST_FACTOR": "1.5", "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    run = run_pytest(reported.path, "--gpus=2", "-n1", "-k", "steady", env=variables)
    assert summary.read_text().count("### gpuperf") == 1
    assert len([line for line in run.result.outlines if line.startswith("::error ")]) == 2


def test_without_v_each_test_has_a_line(reported: Reported) -> None:
    run = run_pytest(reported.path, "--gpus=2", "-qq", "-k", "race or steady")
    assert run.section("gpuperf") == [
        "verdict          change       value  of limit  test",
        "test_it.py",
        "  same      +0.0 % GB/s  127.8 GB/s    28.4 %  test_steady[2ranks] busbw +1",
        "  same     +0.0 % ratio       1.50x            test_race[2ranks]",
        "not judged:",
        "  test_it.py::test_race[2ranks]: plain 3.150 ms",
        f"4 metrics on {KEY}: 3 same, 1 unjudged",
    ]


def _path(reported: Reported) -> str:
    return f"{reported.path}:{environment()['PYTHONPATH']}"
