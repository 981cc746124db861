"""Each feature is a folder that can be deleted, and another package adds one by the same hooks."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from pytest_gpuperf.features import iterate_modules
from tests.whole_run import environment, write

PACKAGE = Path(__file__).parents[1] / "pytest_gpuperf"
FEATURES = sorted(path.parent.name for path in (PACKAGE / "features").glob("*/__init__.py"))
BROUGHT = {
    "page": ("--report=page.html", "report"),
    "profiling": ("--profile=traces", None),
    "mutating": ("--mutate=60", None),
    "adopted": ("--adopt-classes", None),
    "doctor": (None, "doctor"),
    "everywhere": (None, "everywhere"),
    "fleet": (None, "fleet"),
    "acceptance": (None, "accept"),
    "github": (None, "comment"),
    "recovery": (None, "recover"),
    "parity": ("--census", "parity"),
    "racing": ("--race-budget=60", None),
}
"""The option and the command of a feature."""
APART = {"cluster": "--cluster", "explaining": "--explain", "recording": "--update-baselines"}
"""An option that needs more than a run without GPUs has."""
TESTS = """
import pytest
from pytest_gpuperf import Metric

@pytest.mark.ranks(2)
def test_ranks(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]

@pytest.mark.ranks(1)
def test_speed(perf):
    perf.check(time=Metric(1.0, "s", "lower"))
"""

CONFTEST = """
import contextlib, os
from pytest_gpuperf.__main__ import main

if "COMMANDS" in os.environ:
    with open(os.environ["COMMANDS"], "w") as file, contextlib.redirect_stdout(file), contextlib.suppress(SystemExit):
        main(["--help"])
"""
"""Writes the commands of the package to a file, so that a process that shows pytest's options has both."""


def needs(feature: str) -> set[str]:
    """What the feature says that it is made of."""
    return set(getattr(import_module(f"pytest_gpuperf.features.{feature}"), "NEEDS", ()))


def without(feature: str, folder: Path) -> dict[str, str]:
    """An environment whose package lacks the folder of this feature, and nothing else."""
    for source, target, left_out in (
        (PACKAGE, folder / "pytest_gpuperf", {"features"}),
        (PACKAGE / "features", folder / "pytest_gpuperf" / "features", {feature}),
    ):
        target.mkdir(parents=True)
        for entry in source.iterdir():
            if entry.name not in left_out:
                (target / entry.name).symlink_to(entry)
    changed = environment()
    return {**changed, "PYTHONPATH": os.pathsep.join([str(folder), changed["PYTHONPATH"]])}


def run(folder: Path, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("feature", FEATURES)
def test_without_a_feature_the_core_and_all_others_work(feature: str, tmp_path: Path) -> None:
    env = without(feature, tmp_path / "installed")
    folder = write(tmp_path, {"conftest.py": CONFTEST, "test_it.py": TESTS, "pytest.ini": "[pytest]\n"})
    there = {name for name in FEATURES if feature not in {name, *needs(name)}}
    others = {name: brought for name, brought in BROUGHT.items() if name in there}
    options = [option for option, _ in others.values() if option is not None]
    done = run(folder, env, "pytest", "--smoke", "--gpuperf-json=results.json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert len(json.loads((folder / "results.json").read_text())["ran"]) == 2
    assert (folder / "page.html").exists() == ("page" in others)
    options_shown = run(folder, {**env, "COMMANDS": "commands.txt"}, "pytest", "--help").stdout
    named = (folder / "commands.txt").read_text()
    offered = {line.split()[0] for line in named.splitlines() if line.startswith("    ") and line.split()[0].isalpha()}
    known = {word.split("=")[0] for word in options_shown.replace(",", " ").split()}
    for name, (option, command) in BROUGHT.items():
        if command is not None:
            assert (command in offered) == (name in others)
        if option is not None:
            assert (option.partition("=")[0] in known) == (name in others)
    for name, option in APART.items():
        assert (option in known) == (name in there)


def test_every_feature_has_hooks_or_a_command() -> None:
    assert {name for kind in ("plugin", "command") for name, _ in iterate_modules(kind)} == set(FEATURES)


def test_imports_between_features_are_those_that_they_say_they_need() -> None:
    contracts = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one.get("containers") == ["pytest_gpuperf.features"]]
    permitted = {tuple(re.findall(r"features\.(\w+)", line)) for line in contract["ignore_imports"]}
    assert permitted == {(feature, needed) for feature in FEATURES for needed in needs(feature)}


def test_a_plugin_outside_of_the_package_is_a_feature(tmp_path: Path) -> None:
    page = (PACKAGE.parent / "docs" / "reference" / "hooks.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    folder = write(tmp_path, {"conftest.py": example, "test_it.py": TESTS, "pytest.ini": "[pytest]\n"})
    for more in ([], ["-n1"]):
        done = run(folder, environment(), "pytest", "--smoke", "--figures-to=figures.txt", *more)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (folder / "figures.txt").read_text() == "test_speed[1rank] time 1.0 s\n"
        (folder / "figures.txt").unlink()
