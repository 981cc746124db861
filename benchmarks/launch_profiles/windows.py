"""A plugin of pytest that notes when each phase of each test began and ended; pytest's own reports have that."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.launch_profiles.stacks import FOLDER, WINDOWS, Window


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds a line to the file of windows."""
    window = Window(report.nodeid, str(report.when), report.start, report.stop)
    with Path(os.environ[FOLDER], WINDOWS).open("a") as file:
        print(json.dumps(window), file=file)
