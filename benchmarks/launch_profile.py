"""Where the time of a launch goes: by subject, by test, and by what ranks were doing.

    python benchmarks/launch_profile.py --folder DIR [--tests 20] -- suites --gpus 4 -m perf -k 4ranks

What stands behind ``--`` goes to pytest. Each rank samples its own stack 100 times a second. DIR gets the samples. Of
the ranks of a test the one that ran programs for the longest time counts. With --read, a folder of an earlier run is
read again. Exits as pytest does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.launch_profiles.stacks import FOLDER, Window, by_test, samples, windows
from benchmarks.pytest_command import pytest_command

ROOT = Path(__file__).resolve().parents[1]
IN_RANKS = ROOT / "benchmarks" / "launch_profiles" / "in_ranks"


def run(folder: Path, arguments: Sequence[str]) -> int:
    """Runs pytest with the sampler in its ranks; its exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.stacks"), *folder.glob("windows.jsonl")]:
        old.unlink()
    path = os.pathsep.join(filter(None, (str(IN_RANKS), str(ROOT), os.environ.get("PYTHONPATH"))))
    command = pytest_command("-p", "benchmarks.launch_profiles.windows", *arguments)
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path, FOLDER: str(folder.resolve())}).returncode


def report(folder: Path, tests: int) -> Iterator[str]:
    """The lines of the tables: phases, subjects, doings, and the tests that took the longest.

    Args:
        folder: of the samples.
        tests: how many of them.
    """
    found = windows(folder)
    doings = by_test(found, [list(samples(file)) for file in sorted(folder.glob("*.stacks"))])
    yield "seconds by phase"
    yield from _rows(_added((window.phase, window) for window in found))
    yield "seconds by subject"
    yield from _rows(_added((subject(window.test), window) for window in found))
    yield "seconds of calls by what a rank was doing"
    yield from _rows(sum(doings.values(), Counter()))
    whole = _added((window.test, window) for window in found)
    for test, seconds in whole.most_common(tests):
        parts = ", ".join(f"{words} {own:.2f}" for words, own in doings.get(test, Counter()).most_common())
        yield f"{seconds:8.2f}  {test}: {parts or 'no rank'}"


def subject(test: str) -> str:
    """The folder of a test's file, or the file if it lies in none."""
    parts = test.partition("::")[0].split("/")
    return parts[-2] if len(parts) > 1 else parts[0]


def _added(found: Iterator[tuple[str, Window]]) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for name, window in found:
        seconds[name] += window.ended - window.began  # type: ignore[assignment]  # a Counter adds floats as well
    return seconds


def _rows(seconds: Mapping[str, float]) -> Iterator[str]:
    for name, own in sorted(seconds.items(), key=lambda row: -row[1]):
        yield f"{own:8.2f}  {name}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Profiles a run, or reads an earlier one; pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--tests", type=int, default=20, help="how many to print (default 20)")
    parser.add_argument("--read", action="store_true", help="run nothing, read the folder")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, behind --")
    given = parser.parse_args(arguments)
    status = 0 if given.read else run(given.folder, given.pytest)
    print("\n".join(report(given.folder, given.tests)))
    return status


if __name__ == "__main__":
    sys.exit(main())
