"""This plugin, by a real pytest run of ``plugin_module.py``. A test's seconds are those of all its phases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.arms.workload import Arguments, arguments, report
from benchmarks.pytest_command import pytest_command

EXAMPLES = 200
HERE = Path(__file__).parent


@dataclass(slots=True)
class Test:
    """A test that has run."""

    name: str
    phases: dict[str, float] = field(default_factory=dict)
    skip: str | None = None

    @property
    def seconds(self) -> float:
        """Set-up, body and tear-down."""
        return sum(self.phases.values())


def run(asked: Arguments, *options: str, module: str = "plugin_module") -> list[Test]:
    """Runs the tests; in the order of their running.

    Args:
        asked: how many ranks and tests.
        options: of pytest.
        module: has the tests; one of this folder.

    Raises:
        RuntimeError: one failed; has pytest's output.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(HERE / f"{module}.py", folder / "test_cost.py")
        shutil.copy(HERE / "plugin_durations.py", folder / "conftest.py")
        (folder / "pytest.ini").write_text("[pytest]\n")
        file = folder / "phases.jsonl"
        gpus = asked.world.size if asked.world.gpus else 0
        done = subprocess.run(
            pytest_command("-p", "no:cacheprovider", f"--gpus={gpus}", *options, "test_cost.py"),
            cwd=folder,
            env={
                **os.environ,
                "ARM_RANKS": str(asked.world.size),
                "ARM_TESTS": str(asked.tests),
                "ARM_EXAMPLES": str(EXAMPLES),
                "ARM_FILE": str(file),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"the plugin's own run failed:\n{done.stdout}")
        return read(file.read_text().splitlines())


def read(lines: Sequence[str]) -> list[Test]:
    """The tests of which the conftest wrote."""
    tests: dict[str, Test] = {}
    for line in lines:
        phase = json.loads(line)
        test = tests.setdefault(phase["test"], Test(phase["test"]))
        test.phases[phase["when"]] = phase["seconds"]
        test.skip = test.skip or phase["skip"]
    return list(tests.values())


def named(tests: Sequence[Test], function: str) -> list[Test]:
    """Return the tests of one test function."""
    return [test for test in tests if test.name.partition("[")[0] == function]


def rows_of(tests: Sequence[Test]) -> tuple[dict[str, list[float]], list[tuple[str, str]]]:
    """Seconds by row, and rows that are missing, with the reason."""
    fresh = named(tests, "test_fresh")
    missing = [("fresh", skip) for skip in {test.skip for test in fresh} if skip is not None]
    (examples,), (plain,) = named(tests, "test_examples"), named(tests, "test_examples_without_ranks")
    restarts = [test for test in named(tests, "test_restart") if "restarted" in test.name]
    rows = {
        "first": [test.seconds for test in named(tests, "test_first")],
        "warm": [test.seconds for test in named(tests, "test_warm")],
        "example": [(examples.phases["call"] - plain.phases["call"]) / EXAMPLES],
        "restart": [test.phases["setup"] for test in restarts],
    }
    if not missing:
        rows["fresh"] = [test.seconds for test in fresh[1:]]
    return rows, missing


def main() -> None:
    """Reports the rows."""
    report(*rows_of(run(arguments())))


if __name__ == "__main__":
    main()
