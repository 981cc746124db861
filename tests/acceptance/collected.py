"""The tests that the suites have, as pytest collects them; also the plugin that prints them with their marks."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from tests.whole_run import ROOT, environment


def pytest_collection_finish(session: pytest.Session) -> None:
    """Print each test, with a word for its mark."""
    for item in session.items:
        print("\nperf" if item.get_closest_marker("perf") else "\nother", item.nodeid)


def node_ids(*, perf: bool) -> tuple[str, ...]:
    """Node ids of the suites' perf tests, or of the others."""
    return tuple(test for mark, _, test in map(_split, _printed()) if (mark == "perf") is perf)


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


@functools.cache
def _printed() -> tuple[str, ...]:
    options = ["--collect-only", "-qq", "--gpus", "0", "-p", "no:cacheprovider", "-p", "tests.acceptance.collected"]
    command = [sys.executable, "-m", "pytest", "suites", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120, check=True)
    return tuple(line for line in done.stdout.splitlines() if line.startswith(("perf ", "other ")))
