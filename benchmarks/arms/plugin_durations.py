"""The conftest of the plugin's arm: writes down the phases of each test, finer than a JUnit report has them."""

from __future__ import annotations

import json
import os

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One JSON object a line."""
    skip = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else None
    phase = {"test": report.nodeid.partition("::")[2], "when": report.when, "seconds": report.duration, "skip": skip}
    with open(os.environ["ARM_FILE"], "a") as file:
        file.write(json.dumps(phase) + "\n")
