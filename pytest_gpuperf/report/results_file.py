"""``--gpuperf-json``: the results of a run, gathered from the reports and written at its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.report.properties import PROPERTY, unchecked_of
from pytest_gpuperf.verdicts import results
from pytest_gpuperf.verdicts.baselines import BaselineError, Baselines, Scalar
from pytest_gpuperf.verdicts.results import Results
from pytest_gpuperf.verdicts.updating import joined
from pytest_gpuperf.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

CANDIDATE_PROPERTY = "gpuperf_candidate"
"""Name of the report's user property that carries what a test measured in a launch, as baselines in JSON."""


class ResultsFile:
    """Collects figures and verdicts from the reports, wherever the tests ran."""

    def __init__(self, path: Path, hardware_key: str, match: Mapping[str, Scalar]) -> None:
        self._path = path
        self._key = hardware_key
        self._candidates = [Baselines(hardware_key, match)]
        self._verdicts: list[Verdict] = []
        self._unchecked: list[tuple[str, str]] = []
        self._line = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes note of what one test measured."""
        if report.when != "call":
            return
        self._unchecked += [(report.nodeid, name) for name in unchecked_of(report)]
        for name, value in report.user_properties:
            if name == PROPERTY:
                self._verdicts += [Verdict.from_json(data) for data in json.loads(str(value))]
            elif name == CANDIDATE_PROPERTY:
                self._candidates.append(Baselines.from_json(json.loads(str(value)), self._path, self._key))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the file, also of a run that was interrupted."""
        candidate, _ = joined(self._candidates)
        try:
            results.write(self._path, Results(candidate, tuple(self._verdicts), tuple(self._unchecked)))
            self._line = f"results of {len(self._verdicts)} figures written to {self._path}"
        except BaselineError as error:
            self._line = f"results not written: {error}"
            if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Says where the results are."""
        if self._line:
            terminalreporter.write_line(f"gpuperf: {self._line}")
