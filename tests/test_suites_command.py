"""``python -m pytest_gpuperf suites``: which suites it runs, and where their records go."""

import os
import sys
from pathlib import Path

import pytest

from pytest_gpuperf import suites_command
from pytest_gpuperf.__main__ import main
from tests.whole_run import ROOT


def test_in_a_checkout_its_own_suites_run() -> None:
    assert suites_command.find_suites_root() == ROOT
    command = suites_command.make_suites_command(["--gpus", "8"], ROOT, Path("/user"))
    expected = ["-c", f"{ROOT}/pyproject.toml", f"--rootdir={ROOT}", "--baselines=/user/baselines", "--gpus", "8"]
    assert command == [sys.executable, "-m", "pytest", f"{ROOT}/suites", *expected]


def test_the_suites_of_a_wheel_come_before_what_lies_beside_it(tmp_path: Path) -> None:
    for folder in ("package/installed_suites/suites", "suites"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "conftest.py").touch()
    root = tmp_path / "package" / "installed_suites"
    assert suites_command.find_suites_root(tmp_path / "package") == root
    command = suites_command.make_suites_command([], root, Path("/user"))
    assert command[3:7] == [f"{root}/suites", "-c", f"{root}/pytest.ini", f"--rootdir={root}"]
    assert "cache_dir=/user/.pytest_cache" in command


@pytest.mark.parametrize("given", [["--baselines", "mine"], ["--baselines=mine"]])
def test_the_users_folder_of_baselines_wins(given: list[str]) -> None:
    command = suites_command.make_suites_command(given, ROOT, Path("/user"))
    assert [word for word in command if "baselines" in word] == given[:1]


def test_all_that_follows_goes_to_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, command: became.append(command))
    main(["suites", "--gpus", "2", "-m", "perf", "--", "-x"])
    assert became[0][-6:] == ["--gpus", "2", "-m", "perf", "--", "-x"]


def test_a_package_without_suites_names_the_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(suites_command, "find_suites_root", lambda: None)
    monkeypatch.setattr(suites_command, "PACKAGE", tmp_path)
    assert main(["suites"]) == 1
    expected = f"error: {tmp_path} has no suites: install the wheel of pytest-gpuperf, or run pytest in a checkout\n"
    assert capsys.readouterr().err == expected


def test_its_help_names_the_folder_of_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["suites", "--help"])
    assert "Baselines are in ./baselines" in " ".join(capsys.readouterr().out.split())
