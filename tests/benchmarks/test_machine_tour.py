"""A tour of a machine, with CPUs in place of GPUs: each part prints, is timed, and ends at its limit."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import machine_tour
from benchmarks.machine_tour import FAST, PARTS, PROGRAMS, ROOT, SLOW, Given, main


def given(folder: Path) -> Given:
    return Given(8, folder, folder / "sources", "")


def test_every_part_has_a_command_with_the_gpus(tmp_path: Path) -> None:
    for part, command in PARTS.items():
        assert "--gpus=8" in command(given(tmp_path)), part
        scripts = [word for word in command(given(tmp_path)) if word.startswith(("benchmarks/", "suites", "tests/"))]
        assert all((ROOT / script.partition("::")[0]).exists() for script in scripts), part
        assert scripts, part


def test_a_recording_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_tour, "ROOT", tmp_path)
    (tmp_path / "baselines").mkdir()
    assert "--resume" not in PARTS["record"](given(tmp_path))
    (tmp_path / "baselines" / ".8x-nvidia-h200-nv18.journal").touch()
    assert "--resume" in PARTS["record"](given(tmp_path))


def test_tests_of_the_suites_run_and_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--gpus", "0", "--folder", str(tmp_path), "--parts", "correctness", "-k", "test_bytes_around_a_ring"]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("correctness  ")
    (ran,) = json.loads((tmp_path / "tour.json").read_text())
    assert (ran["part"], ran["status"], ran["cut_short"]) == ("correctness", 0, False)
    assert "4 passed" in (tmp_path / "correctness.txt").read_text()


def tour(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, **parts: str) -> int:
    """A tour whose parts are these sources."""
    made = {name: lambda given, source=source: [sys.executable, "-c", source] for name, source in parts.items()}
    monkeypatch.setattr(machine_tour, "PARTS", made)
    return main(["--gpus", "8", "--folder", str(folder), *arguments])


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["in front", "in the background"])
def of_a_shell(request: pytest.FixtureRequest) -> Iterator[None]:
    """What runs in the background of a shell ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("of_a_shell")
def test_a_part_at_its_limit_is_interrupted_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs = (
        "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('2 passed'); raise SystemExit(2)"
    )
    assert tour(tmp_path, monkeypatch, "--limit=1", first=hangs, second="print('here')") == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("s  cut short: 2 passed")
    assert second.endswith("s  exit status 0: here")


def test_a_part_that_takes_no_notice_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_tour, "PATIENCE", 1.0)
    deaf = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)"
    assert tour(tmp_path, monkeypatch, "--limit=1", first=deaf) == 1
    (ran,) = json.loads((tmp_path / "tour.json").read_text())
    assert (ran["status"], ran["cut_short"]) == (-9, True)


def test_a_later_tour_keeps_what_earlier_ones_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tour(tmp_path, monkeypatch, first="raise SystemExit(3)")
    assert tour(tmp_path, monkeypatch, second="") == 0
    assert [(ran["part"], ran["status"]) for ran in json.loads((tmp_path / "tour.json").read_text())] == [
        ("first", 3),
        ("second", 0),
    ]


def test_nccl_tests_need_their_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--gpus", "8", "--folder", str(tmp_path), "--parts", "nccl-tests"])
    assert "nccl-tests: add --nccl-tests DIR, with the sources of https://github.com/NVIDIA/nccl-tests" in (
        capsys.readouterr().err
    )


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_slower_commit_slows_the_broadcasts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "checkout"
    (checkout / PROGRAMS).parent.mkdir(parents=True)
    (checkout / "baselines").mkdir()
    source = (ROOT / PROGRAMS).read_text()
    (checkout / PROGRAMS).write_text(source)

    def git(*arguments: str, where: Path = checkout) -> str:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        done = subprocess.run(["git", *identity, *arguments], cwd=where, check=True, capture_output=True, text=True)
        return done.stdout

    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "as it is"]):
        git(*arguments)
    (checkout / "baselines" / "8x.json").write_text("{}")  # recorded since
    monkeypatch.setattr(machine_tour, "ROOT", checkout)
    for _ in range(2):  # a second tour finds what the first one made
        copy = machine_tour.slowed_checkout(tmp_path / "tour")
    assert (copy / PROGRAMS).read_text() == source.replace(FAST, SLOW)
    assert (copy / "baselines" / "8x.json").exists()
    assert git("show", "--stat", "--format=%s", where=copy).splitlines()[0] == "Broadcasts move 5 % more"
    assert (checkout / PROGRAMS).read_text() == source

    monkeypatch.setattr(machine_tour, "FAST", "nothing of the kind\n")
    with pytest.raises(SystemExit, match=r"got 0 lines 'nothing of the kind', expected one to make slower"):
        machine_tour.slowed_checkout(tmp_path / "other")
