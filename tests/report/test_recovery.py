"""What is left of a run that was killed."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.baselines import files
from pytest_gpuperf.report import run_journal
from pytest_gpuperf.report.run_journal import Head, RunJournal, RunJournalError, make_journal_path, read_journal

SOURCE = """
import os, pathlib, time

def test_a(): pass
def test_b(): assert 0, "wrong"
def test_c():
    pathlib.Path("running").write_text("")
    time.sleep(60)
"""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB_"))}


def killed(folder: Path, *more: str, **environ: str) -> None:
    (folder / "test_it.py").write_text(SOURCE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "--gpuperf-json=r.json",
        *more,
    ]
    with subprocess.Popen(command, cwd=folder, env=environment() | environ, stdout=subprocess.DEVNULL) as run:
        ends = time.monotonic() + 60
        journal = make_journal_path(folder / "r.json")
        # xdist's controller hears of it later than the test begins.
        while not ((folder / "running").exists() and '"start": "test_it.py::test_c"' in journal.read_text()):
            assert run.poll() is None
            assert time.monotonic() < ends
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)


def recovered(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_gpuperf", "recover", "r.json", "--junitxml=j.xml"]
    return subprocess.run(command, cwd=folder, env=environment() | environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "within a write"])
def test_a_killed_run_leaves_what_had_ended_and_names_what_ran(tmp_path: Path, cut: bool) -> None:
    killed(tmp_path)
    if cut:
        with make_journal_path(tmp_path / "r.json").open("a") as journal:
            journal.write('{"report": {"nodeid": "test_it.py::te')
    summary = tmp_path / "summary.md"
    result = recovered(tmp_path, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    assert result.returncode == 1, result.stderr
    assert result.stdout.count("running when the run was killed: test_it.py::test_c") == 1
    assert "PytestAssertRewriteWarning" not in result.stdout
    assert "::error file=test_it.py,line=6," in result.stdout
    assert "test_it.py::test_c" in summary.read_text()
    cases = {case.get("name"): [part.tag for part in case] for case in ET.parse(tmp_path / "j.xml").iter("testcase")}
    assert cases == {"test_a": [], "test_b": ["failure"], "test_c": ["failure"]}
    assert (tmp_path / "r.json").exists()


FEATURE = """
from dataclasses import dataclass

from pytest_gpuperf.report.shown import Shown
from pytest_gpuperf.report.table import Line

@dataclass(frozen=True)
class Visit:
    test: str

VISITS = Shown("visits", Visit, lambda visits: [Line(f"{visit['test']} was visited") for visit in visits])

def pytest_gpuperf_options():
    return {"--visits-to": {"default": "nowhere", "help": "where to"}}

def pytest_gpuperf_shows():
    return [VISITS]

def pytest_gpuperf_reports(config, reported):
    print("visits go", config.option.gpuperf_visits_to, config.getoption("gpuperf_json"))

def pytest_runtest_setup(item):
    item.user_properties += VISITS.carry([{"test": item.name}])
"""


def test_what_a_feature_of_another_package_shows_is_recovered(tmp_path: Path) -> None:
    installed = tmp_path / "visiting-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: visiting\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[pytest11]\nvisiting = visiting\n")
    (tmp_path / "visiting.py").write_text(FEATURE)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    killed(tmp_path, PYTHONPATH=path)
    result = recovered(tmp_path, PYTHONPATH=path)
    assert result.returncode == 1, result.stderr
    assert "visits go nowhere None" in result.stdout
    assert "\ntest_a was visited\ntest_b was visited\n" in result.stdout
    shown = json.loads((tmp_path / "r.json").read_text())["shown"]
    assert shown == {"visits": [{"test": "test_a"}, {"test": "test_b"}]}


def test_what_the_run_was_told_is_recovered(tmp_path: Path) -> None:
    killed(tmp_path, "--smoke", "--baselines=theirs")
    assert read_journal(make_journal_path(tmp_path / "r.json")).head.baselines == "theirs"
    recovered(tmp_path)
    assert json.loads((tmp_path / "r.json").read_text())["smoke"]


def test_a_run_that_ended_leaves_no_journal_and_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "--gpuperf-json=r.json",
    ]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, stdout=subprocess.DEVNULL, timeout=60)
    assert not make_journal_path(tmp_path / "r.json").exists()
    result = recovered(tmp_path)
    assert (result.returncode, result.stdout) == (0, "the run ended by itself: r.json is whole\n")


def test_the_controller_of_xdist_keeps_what_its_workers_report(tmp_path: Path) -> None:
    killed(tmp_path, "-n1")
    result = recovered(tmp_path)
    assert result.returncode == 1
    assert "2 tests had ended" in result.stdout
    assert "running when the run was killed: test_it.py::test_c" in result.stdout


def test_a_run_that_never_began_is_an_error(tmp_path: Path) -> None:
    result = recovered(tmp_path)
    assert result.returncode == 1
    assert "there is no such file" in result.stderr


def test_a_journal_without_its_first_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r.json.journal"
    path.write_text('{"he')
    with pytest.raises(RunJournalError, match="has no first line that can be read"):
        read_journal(path)


def written(results: Path, config: pytest.Config, *reports: pytest.TestReport) -> Path:
    """The journal of a run that was killed after these reports."""
    journal = RunJournal(results, Head("key", {}, 0, str(results.parent)))
    journal.pytest_sessionstart(cast("pytest.Session", SimpleNamespace(config=config)))
    for report in reports:
        journal.pytest_runtest_logreport(report)
    journal.pytest_unconfigure()
    return make_journal_path(results)


def report_of(name: str, when: str = "teardown", **more: Any) -> pytest.TestReport:
    longrepr = more.pop("longrepr", None)
    outcome: Any = "failed" if longrepr else "passed"
    return pytest.TestReport(name, ("test_it.py", 0, name), {}, outcome, longrepr, cast(Any, when), **more)


def test_a_journal_larger_than_other_files_may_be_is_read(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 4000)
    output = [("Captured stdout call", "x" * 1000)]
    path = written(tmp_path / "r.json", pytestconfig, *(report_of(f"test_{n}", sections=output) for n in range(9)))
    assert path.stat().st_size > files.MOST_BYTES
    kept = read_journal(path)
    assert (kept.ended, kept.broken, dict(kept.running)) == (9, 0, {})
    assert [report["nodeid"] for report in kept.reports()] == [f"test_{n}" for n in range(9)]


def test_a_journal_keeps_the_beginning_and_the_end_of_a_long_output(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    output = [("Captured stdout call", f"first{'x' * (1 << 20)}last")]
    path = written(tmp_path / "r.json", pytestconfig, report_of("test_a", sections=output))
    assert path.stat().st_size < 20_000
    (report,) = read_journal(path).reports()
    ((title, text),) = report["sections"]
    left_out = (1 << 20) + 9 - (1 << 14)
    note = f"[gpuperf: {left_out} characters are left out here: the journal of a killed run keeps 16384 of an output]"
    assert title == "Captured stdout call"
    assert text.startswith("firstx")
    assert text.endswith("xlast")
    assert note in text


def test_no_line_is_longer_than_the_reader_takes(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_journal, "MOST_LINE_BYTES", 30_000)
    many = [("name", "x" * 40_000)]
    path = written(
        tmp_path / "r.json",
        pytestconfig,
        report_of("test_a", "call", longrepr="y" * 40_000, user_properties=many),
        report_of("test_a"),
    )
    kept = read_journal(path)
    assert (kept.ended, kept.broken) == (1, 0)
    call, _ = kept.reports()
    assert "this report was longer than 30000 bytes, so the journal left out its output" in call["sections"][0][1]
    assert call["longrepr"].startswith("yyy")


def test_a_line_that_is_too_long_is_left_out_and_the_next_ones_are_read(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "r.json", pytestconfig, report_of("test_a"))
    with path.open("a") as stream:
        stream.write(f'{{"report": "{"x" * 9000}"}}\n')
        stream.write('{"start": "test_b", "location": ["test_it.py", 1, "test_b"]}\n')
    monkeypatch.setattr(run_journal, "MOST_LINE_BYTES", 2000)
    kept = read_journal(path)
    assert (kept.ended, kept.broken, list(kept.running)) == (1, 1, ["test_b"])
