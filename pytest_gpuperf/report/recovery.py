"""Makes the results and the JUnit file of a killed run from its journal, and names the test that was running."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from pytest_gpuperf.report.commands import Commands
from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.github import GitHub
from pytest_gpuperf.report.one_line import one_line
from pytest_gpuperf.report.properties import RANKS_KEYWORD
from pytest_gpuperf.report.results_file import ResultsFile, load
from pytest_gpuperf.report.run_journal import Told, journal_of, told
from pytest_gpuperf.report.terminal import Summary
from pytest_gpuperf.report.units import format_count

KILLED = "the run was killed while this test was running: look for a job timeout, or for the system's out of memory"


def recover(results: Path, junit: Path | None) -> tuple[list[str], bool]:
    """Replays what a killed run had reported through the reporters of a whole run.

    Args:
        results: The file that ``--gpuperf-json`` named.
        junit: Where the JUnit file goes; None for none.

    Returns:
        What to say, and whether the run had ended by itself.

    Raises:
        RunJournalError: The journal cannot be read.
        ResultsError: There is neither a journal nor a file of results.
    """
    path = journal_of(results)
    if not path.exists():
        load(results)
        return [f"the run ended by itself: {results} is whole"], True
    kept = told(path)
    file = ResultsFile(results, kept.head.hardware_key, kept.head.match)
    findings = Findings()
    lines = _lines(kept)
    commands = Commands(Path(kept.head.rootpath), Path.cwd(), kept.head.gpus)
    rootpath = Path(kept.head.rootpath)
    plugins = [
        _Replay(kept, file),
        file,
        findings,
        Summary(lambda verdicts: lines, findings, commands),
        GitHub(lambda verdicts: lines, findings, rootpath, commands=commands),
    ]
    # Nothing of the repository's own settings: they are of a run that tests, and name options that are not here.
    os.environ.pop("PYTEST_ADDOPTS", None)
    arguments = ["-c", os.devnull, "--rootdir", str(rootpath), "--noconftest"]
    arguments += ["-p", "no:gpuperf", "-p", "no:cacheprovider"]
    if junit is not None:
        arguments.append(f"--junitxml={junit.absolute()}")
    # This package has long been imported, and pytest would warn that it cannot rewrite its assertions.
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    pytest.main(arguments, plugins=plugins)
    return [], False  # the summary has printed the lines


def _lines(kept: Told) -> list[str]:
    lines = [f"the run was killed: {format_count(kept.ended, 'test')} had ended"]
    lines += [f"running when the run was killed: {one_line(nodeid)}" for nodeid in kept.running]
    if kept.broken:
        lines.append(f"{format_count(kept.broken, 'line')} of its journal cannot be read and are left out")
    return lines


class _Replay:
    """A run that logs the reports of another one, and collects nothing."""

    def __init__(self, kept: Told, file: ResultsFile) -> None:
        self._kept = kept
        self._file = file

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Finds no test: none is run."""
        session.testscollected = self._kept.ended + len(self._kept.running)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Logs what was reported, then each test that was running as one that failed."""
        hook = session.config.hook
        for data in self._kept.reports():
            report = hook.pytest_report_from_serializable(config=session.config, data=dict(data))
            hook.pytest_runtest_logreport(report=report)
        for report in self._unended():
            hook.pytest_runtest_logreport(report=report)
        return True

    def pytest_sessionfinish(self) -> None:
        """Writes the results."""
        self._file.write()

    def _unended(self) -> Sequence[pytest.TestReport]:
        reports = []
        for nodeid, location in self._kept.running.items():
            keywords: dict[str, Literal[1]] = {RANKS_KEYWORD: 1}
            reports.append(pytest.TestReport(nodeid, location, keywords, "failed", KILLED, "call"))
            reports.append(pytest.TestReport(nodeid, location, keywords, "passed", None, "teardown"))
        return reports
