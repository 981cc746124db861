"""Runs that record and judge from end to end, with real processes: only the GPUs are made up."""

import re
import shlex
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.json_files import load
from pytest_gpuperf.baselines.schema import Baselines
from tests.whole_run import WholeRun, run_pytest, write

KEY = "2x-nvidia-h200-nv18"

CONFTEST = """
import pytest
from tests import fake_gpus
fake_gpus.install(pytest.MonkeyPatch(), visible=2)
"""

# A step that sleeps is as steady as a figure can be here; how long, a file tells, so that the body stays the same.
TESTS = """
import os, pathlib, time
import pytest

FOLDER = pathlib.Path(__file__).parent

def sleeping(ctx, *, name):
    seconds = float((FOLDER / f"{name}.txt").read_text())
    with (FOLDER / "pids.txt").open("a") as pids:
        print(name, os.getpid(), ctx.rank, id(ctx.group), file=pids)
    return lambda: time.sleep(seconds)

def sleep(perf, name):
    timing = perf.configured(samples=10, budget=0.1).measure(sleeping, name=name)
    perf.check(time=timing.time, rate=timing.rate(1.0, "Hz"))

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2)]

def test_steady(perf):
    sleep(perf, "steady")

def test_slowed(perf):
    sleep(perf, "slowed")

def test_changed(perf):
    sleep(perf, "changed")
"""

NEW = """
def test_new(perf):
    sleep(perf, "steady")
"""


@dataclass
class Judged:
    """A recording, a run that is judged by it, and the command that this run names."""

    recording: WholeRun
    recorded: Baselines
    launches: list[list[str]]
    """For each measured test of the recording, in order: name, process, rank, group."""
    run: WholeRun
    report: ElementTree.Element
    again: WholeRun
    after: Baselines


def stored(folder: Path) -> Baselines:
    baselines = load(folder / "baselines" / f"{KEY}.json", KEY)
    assert baselines is not None
    return baselines


def slept(folder: Path, **seconds: float) -> None:
    for name, value in seconds.items():
        (folder / f"{name}.txt").write_text(str(value))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    folder = write(
        tmp_path_factory.mktemp("judged"),
        {"conftest.py": CONFTEST, "test_it.py": TESTS, "pytest.ini": "[pytest]\ngpuperf_minimum_slowdown = 0.5\n"},
    )
    slept(folder, steady=5e-3, slowed=5e-3, changed=5e-3)
    recording = run_pytest(folder, "--gpus=2", "--update-baselines", "--reason=a first one")
    recorded = stored(folder)
    launches = [line.split() for line in (folder / "pids.txt").read_text().splitlines()]

    slept(folder, slowed=25e-3)
    (folder / "test_it.py").write_text(TESTS.replace('sleep(perf, "changed")', 'sleep(perf, name="changed")') + NEW)
    run = run_pytest(folder, "--gpus=2", "--strict-baselines", "--junitxml=report.xml")
    report = ElementTree.parse(folder / "report.xml").getroot()

    command = re.search(r'record one with: pytest ("test_it.py::test_new.*)', run.report("test_new[2ranks]"))
    assert command is not None
    again = run_pytest(folder, *shlex.split(command[1]))
    return Judged(recording, recorded, launches, run, report, again, stored(folder))


def test_a_recording_writes_what_each_launch_measured(judged: Judged) -> None:
    assert judged.recording.result.ret == 0, judged.recording.text
    assert sorted(judged.recorded.tests) == [
        f"test_it.py::test_{name}[2ranks]" for name in ("changed", "slowed", "steady")
    ]
    assert len(judged.recorded.launches) == 5
    for test in judged.recorded.tests.values():
        assert {figure.launch for figure in test.metrics["time"].launches} == set(judged.recorded.launches)
        assert 5e-3 <= test.metrics["time"].center < 15e-3
        assert test.metrics["time"].clock == "host"
    (update,) = judged.recorded.updates
    assert (update.reason, update.launches) == ("a first one", 5)


def test_what_measured_is_kept_beside_the_figures(judged: Judged) -> None:
    for info in judged.recorded.launches.values():
        assert {"torch", "python", "driver"} <= set(info.environment)
        assert info.host


def test_each_launch_has_fresh_processes_which_its_tests_share(judged: Judged) -> None:
    of_rank_0 = [line for line in judged.launches if line[2] == "0"]
    assert [line[0] for line in of_rank_0] == ["steady", "slowed", "changed"] * 5
    processes = [line[1] for line in of_rank_0]
    assert len(set(processes[:3])) == len(set(processes[3:6])) == 1
    assert processes[0] != processes[3]
    assert len({line[3] for line in of_rank_0[:3]}) == 1


def test_the_recording_is_told(judged: Judged) -> None:
    lines = judged.recording.section("gpuperf")
    assert f"30 metrics on {KEY}: 30 recorded" in lines
    assert re.fullmatch(rf"baselines of 3 tests written to .*/baselines/{KEY}\.json", lines[-1])


def test_a_steady_figure_is_the_same(judged: Judged) -> None:
    assert judged.run.outcomes["test_steady[2ranks]"] in ("PASSED", "SKIPPED")
    assert not any("regressed" in line and "test_steady" in line for line in judged.run.section("gpuperf"))


def test_a_slowed_step_fails_with_the_lines_of_each_figure_the_worst_first(judged: Judged) -> None:
    assert judged.run.outcomes["test_slowed[2ranks]"] == "FAILED"
    time, *of_time, rate, spread, not_raced = judged.run.report("test_slowed[2ranks]").strip().splitlines()
    assert re.fullmatch(r"time 2\d\.\d\d ms: \d+\.\d % slower than \d\.\d\d\d ms, by the baseline alone", time), time
    assert re.fullmatch(r"rate \d\d\.\d\d Hz: \d+\.\d % lower than .* Hz, by the baseline alone", rate), rate
    assert re.fullmatch(r"  spread \d+\.\d % over 5 launches; a loss of \d+\.\d % is seen", spread), spread
    assert not_raced.startswith("  not raced: the baseline names no clean commit: ")
    assert len(of_time) == 2
    summary = judged.run.section("short test summary info")
    assert f"FAILED test_it.py::test_slowed[2ranks] - {time}" in summary


def test_a_changed_test_is_stale(judged: Judged) -> None:
    assert judged.run.outcomes["test_changed[2ranks]"] == "FAILED"
    first, *others = judged.run.report("test_changed[2ranks]").strip().splitlines()
    assert first.endswith(": stale baseline: the test's body has changed since")
    assert others[-1].startswith("  record one with: pytest")


def test_a_new_test_has_no_baseline_and_the_command_it_names_records_one(judged: Judged) -> None:
    assert judged.run.outcomes["test_new[2ranks]"] == "FAILED"
    assert judged.again.result.ret == 0, judged.again.text
    assert set(judged.again.outcomes.values()) == {"PASSED"}
    assert len(judged.again.outcomes) == 5
    assert set(judged.after.tests) == {*judged.recorded.tests, "test_it.py::test_new[2ranks]"}
    for test, entry in judged.recorded.tests.items():
        assert judged.after.tests[test] == entry
    assert len(judged.after.updates) == 2


def test_the_summary_lists_every_figure_worst_first(judged: Judged) -> None:
    lines = judged.run.section("gpuperf")
    verdicts = [line.split()[0] for line in lines if "test_it.py::" in line]
    assert verdicts[:6] == ["regressed"] * 2 + ["missing"] * 4
    assert len(verdicts) == 8
    assert lines[-3].startswith(f"8 metrics on {KEY}: 2 regressed, 4 missing, ")
    assert lines[-2] == "thresholds relaxed: gpuperf_minimum_slowdown is 50.0 % (default 5.0 %)"


def test_a_regression_is_its_own_tests_failure_in_junit(judged: Judged) -> None:
    cases = {case.attrib["name"]: case for case in judged.report.iter("testcase")}
    failed = sorted(name for name, case in cases.items() if case.find("failure") is not None)
    assert failed == ["test_changed[2ranks]", "test_new[2ranks]", "test_slowed[2ranks]"]
    assert {error.tag for case in cases.values() for error in case if error.tag == "error"} == set()
    for name, case in cases.items():
        values = [item.attrib["value"] for item in case.iter("property") if item.attrib["name"] == "gpuperf"]
        assert len(values) == 1, name
    slowed = next(cases["test_slowed[2ranks]"].iter("property")).attrib["value"]
    assert '"outcome": "regressed"' in slowed
