"""``python -m pytest_gpuperf accept``, as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.features.acceptance import accepting as command
from pytest_gpuperf.features.acceptance.accepting import _describe_references
from pytest_gpuperf.features.acceptance.verdict import Fitness
from pytest_gpuperf.features.day_zero.references.schema import References, Source
from pytest_gpuperf.features.day_zero.references.shelf import Shelf
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.report import results_file
from tests import fake_gpus
from tests.whole_run import environment

ONE_TEST = "-k test_every_rank_is_root_once"


def started(folder: Path, *options: str, only: str = "") -> subprocess.Popen[str]:
    """The command on CPUs in an empty folder; its temporary files are in another one."""
    for name in ("empty", "temporary"):
        (folder / name).mkdir()
    environ = environment(TMPDIR=str(folder / "temporary"))
    environ["PYTEST_ADDOPTS"] += f" {only}"
    return subprocess.Popen(
        [sys.executable, "-m", "pytest_gpuperf", "accept", "--gpus", "0", "--soak", "0", *options],
        cwd=folder / "empty",
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(folder: Path) -> list[int]:
    """Processes that run in this folder or below it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_an_acceptance_prints_its_verdict_and_writes_it_and_nothing_else(tmp_path: Path) -> None:
    with started(tmp_path, "--gpuperf-json", "out.json", "--report", "page.html", only=ONE_TEST) as run:
        output, _ = run.communicate(timeout=120)
    assert run.returncode == 0, output
    lines = output.splitlines()
    assert lines[0].endswith("no GPU is visible, so only numbers are checked")
    assert lines[1].startswith("gpuperf: numbers on CPUs ... ")
    assert " passed" in lines[1]
    assert lines[2:4] == ["", Fitness.NUMBERS.value]
    assert lines[-2:] == ["gpuperf: results written to out.json", "gpuperf: page written to page.html"]
    folder = tmp_path / "empty"
    assert sorted(path.name for path in folder.iterdir()) == ["out.json", "page.html"]
    results = results_file.load(folder / "out.json")
    assert results.summary is not None
    assert (results.summary["title"], results.summary["partial"]) == (
        Fitness.NUMBERS.value,
        "",
    )
    assert {one.outcome for one in results.ran} == {"passed"}
    assert [state for component, state, _ in results.summary["rows"] if component == "numbers"] == ["ok"]
    assert f'<p class="verdict fit">{Fitness.NUMBERS.value}</p>' in (folder / "page.html").read_text()
    assert list((tmp_path / "temporary").glob("gpuperf-accept-*")) == []
    assert processes_of(tmp_path) == []


def test_an_interrupted_acceptance_prints_a_partial_verdict_and_leaves_no_process(tmp_path: Path) -> None:
    """SIGTERM becomes the KeyboardInterrupt that Python itself makes of SIGINT."""
    with started(tmp_path, "--gpuperf-json", "out.json") as run:
        journals = (tmp_path / "temporary").glob
        wait_for(lambda: any('"start"' in path.read_text() for path in journals("gpuperf-accept-*/*.journal")), run)
        assert len(processes_of(tmp_path)) > 2  # the command, pytest, and what starts ranks
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 1, output
    assert "gpuperf: numbers on CPUs ... interrupted\n" in output
    assert " (partial: interrupted in numbers on CPUs)\n" in output
    summary = results_file.load(tmp_path / "empty" / "out.json").summary
    assert summary is not None
    assert summary["partial"] == "interrupted in numbers on CPUs"
    assert processes_of(tmp_path) == []
    assert list((tmp_path / "temporary").glob("gpuperf-accept-*")) == []
    assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == ["out.json"]


def status_of(*options: str) -> int | str | None:
    """What the command comes to that is given options that it refuses."""
    try:
        return main(["accept", *options])
    except SystemExit as error:
        return error.code


@pytest.fixture
def _no_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is run."""
    monkeypatch.setattr(command, "_accept", lambda *_: pytest.fail("it began"))


@pytest.mark.usefixtures("_no_phase")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "x"], "argument --gpus: takes a number of GPUs or 'auto', got 'x'"),
        (["--gpus=-1"], "argument --gpus: takes a number of GPUs or 'auto', got '-1'"),
        (["--soak=-1"], "argument --soak: takes seconds, 0 or more, got '-1'"),
        (["--soak", "nan"], "argument --soak: takes seconds, 0 or more, got 'nan'"),
        (["--soak", "inf"], "argument --soak: takes seconds, 0 or more, got 'inf'"),
        (["--soak", "long"], "argument --soak: takes seconds, 0 or more, got 'long'"),
        (["--gpus", "3"], "error: --gpus 3: 2 GPUs are visible\n"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_gpus.limit(monkeypatch, 2)
    assert status_of(*options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("_no_phase")
def test_a_machine_whose_gpus_are_lost_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_gpus.install(monkeypatch, visible=0)
    assert status_of() == 2
    assert capsys.readouterr().err == (
        "error: no GPU is visible, so there is no speed to judge: check nvidia-smi and CUDA_VISIBLE_DEVICES; "
        "`accept --gpus 0` checks only numbers, on CPUs\n"
    )


@pytest.mark.usefixtures("_no_phase")
@pytest.mark.parametrize("option", ["--report", "--gpuperf-json"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "new" / "page.html"
    assert status_of("--gpus", "0", option, str(below)) == 2
    assert capsys.readouterr().err == f"error: {below} cannot be written: choose another folder\n"
    assert status_of("--gpus", "0", option, str(tmp_path)) == 2
    assert capsys.readouterr().err == f"error: {tmp_path} is a folder: name a file\n"


@pytest.mark.usefixtures("_no_phase")
def test_a_folder_that_nobody_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root may write to any, so the system's answer is a made one."""
    asked: list[str] = []

    def access(path: Path, mode: int) -> bool:
        asked.append(str(path))
        return False

    monkeypatch.setattr(os, "access", access)
    page = tmp_path / "new" / "newer" / "page.html"
    assert status_of("--gpus", "0", "--report", str(page)) == 2
    assert capsys.readouterr().err == f"error: {page} cannot be written: choose another folder\n"
    assert asked == [str(tmp_path)]  # a folder that is missing would be made


@pytest.mark.usefixtures("_no_phase")
def test_references_of_a_later_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_gpus.limit(monkeypatch, 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia-h200-1.json").write_text('{"references": 99, "kind": {}, "sources": {}, "figures": {}}')
    opened = Shelf.open
    monkeypatch.setattr(Shelf, "open", lambda match: opened(match, tmp_path))
    assert status_of() == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "nvidia-h200-1.json") in error
    assert "upgrade" in error


@pytest.mark.usefixtures("_no_phase")
def test_a_package_without_suites_names_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_suites_root", lambda: None)
    monkeypatch.setattr(command, "PACKAGE", tmp_path)
    assert status_of("--gpus", "0") == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path} has no suites: install the wheel of pytest-gpuperf, or run it in a checkout\n"
    )


def source(launches: int, machines: int) -> Source:
    return Source(2, "nv18", machines, launches, "2026-11-01", "2026-11-02", {})


def test_the_first_line_says_how_much_is_known_of_machines_of_this_kind() -> None:
    machine = fake_gpus.machine_of(2)
    shelf = Shelf(References({}, {"1x-a": source(5, 1), "2x-a": source(41, 12)}, {}), "nv18")
    assert _describe_references(machine, shelf) == "references are 46 launches on 13 machines with NVIDIA H200"


def test_gpus_that_nobody_has_measured_are_judged_by_a_model() -> None:
    assert _describe_references(fake_gpus.machine_of(2), None) == (
        "no references of NVIDIA H200, so a model of the hardware judges what no baseline does"
    )


def test_gpus_of_two_kinds_have_no_references() -> None:
    mixed = fake_gpus.machine_of(2)
    mixed = replace(mixed, gpus=(mixed.gpus[0], replace(mixed.gpus[1], name="NVIDIA H100 80GB HBM3")))
    assert _describe_references(mixed, None) == (
        "NVIDIA H100 80GB HBM3 and NVIDIA H200 in one machine have no references, so what is known of neither is shown"
    )


def test_without_gpus_only_numbers_are_checked() -> None:
    assert _describe_references(Machine((), None, False), None) == "no GPU is visible, so only numbers are checked"


def test_its_help_names_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--help") == 0
    told = " ".join(capsys.readouterr().out.split())
    for option in ("--gpus N", "--quick a first look", "--soak SECONDS", "--report FILE", "--gpuperf-json FILE"):
        assert option in told
