"""Makes the results and the JUnit file of a killed run from its journal, and names the test that was running."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.baselines.schema import Baselines
from pytest_gpuperf.report.commands import Commands
from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.keyword import RANKS_KEYWORD
from pytest_gpuperf.report.kinds import collect_kinds
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.report.properties import read_unchecked, read_verdicts
from pytest_gpuperf.report.results_file import CANDIDATE_PROPERTY, ResultsFile, load
from pytest_gpuperf.report.run_journal import RunJournalError, Told, make_journal_path, read_journal
from pytest_gpuperf.report.shown import Shown
from pytest_gpuperf.report.terminal import Reported, Summary
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.run.active import REPORTS

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
    path = make_journal_path(results)
    if not path.exists():
        load(results)
        return [f"the run ended by itself: {results} is whole"], True
    kept = read_journal(path)
    # Nothing of the repository's own settings: they are of a run that tests, and name options that are not here.
    os.environ.pop("PYTEST_ADDOPTS", None)
    arguments = ["-c", os.devnull, "--rootdir", kept.head.rootpath, "--noconftest"]
    arguments += ["-p", "gpuperf", "-p", "no:cacheprovider"]
    if junit is not None:
        arguments.append(f"--junitxml={junit.absolute()}")
    # This package has long been imported, and pytest would warn that it cannot rewrite its assertions.
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main(arguments, plugins=[_Reporters(results, kept)])
    if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        raise RunJournalError(
            f"journal {str(path)!r} cannot be replayed: got exit code {code:d} of pytest, which has printed why, "
            f"expected a journal of this version whose rootdir {cut(kept.head.rootpath)!r} is here: recover on the "
            "machine of the run, or run the tests again"
        )
    return [], False  # the summary has printed the lines


def _format_lines(kept: Told, broken: int) -> list[str]:
    lines = [f"the run was killed: {format_count(kept.ended, 'test')} had ended"]
    lines += [f"running when the run was killed: {make_one_line(nodeid)}" for nodeid in kept.running]
    broken += kept.broken
    if broken:
        lines.append(f"{format_count(broken, 'line')} of its journal cannot be read and are left out")
    return lines


def _restore_tuple(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report whose skip has a tuple again, which pytest requires and JSON does not have."""
    place = report["longrepr"]
    return {**report, "longrepr": tuple(place) if isinstance(place, list) else place}


class _Reporters:
    """Registers the reporters of the core and of all features."""

    def __init__(self, results: Path, kept: Told) -> None:
        self._results = results
        self._kept = kept

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Registers the reporters, with every kind that tests can show, in place of a run that would begin."""
        config.pluginmanager.unregister(name=REPORTS)
        kept, head, kinds = self._kept, self._kept.head, collect_kinds(config)
        rootpath = Path(head.rootpath)
        file = ResultsFile(self._results, head.hardware_key, head.match, kinds=kinds, smoke=head.smoke)
        findings = Findings(kinds)
        commands = Commands(rootpath, Path.cwd(), head.gpus, head.smoke, head.baselines, head.nodes, delays=head.delays)
        replay = _Replay(kept, file, kinds)
        reported = Reported(lambda _: _format_lines(kept, replay.broken), findings, commands, rootpath)
        summary = Summary(reported.closing_lines, findings, commands, smoke=head.smoke)
        for reporter in (replay, file, findings, summary):
            config.pluginmanager.register(reporter)
        config.hook.pytest_gpuperf_reports(config=config, reported=reported)


class _Replay:
    """A run that logs the reports of another one, and collects nothing."""

    def __init__(self, kept: Told, file: ResultsFile, kinds: Sequence[Shown]) -> None:
        self._kept = kept
        self._file = file
        self._kinds = kinds
        self.broken = 0
        """Reports that cannot be read, beside the journal's broken lines."""

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
            try:
                report = hook.pytest_report_from_serializable(config=session.config, data=_restore_tuple(data))
                self._read(report)
            except Exception:  # pytest and other plugins make reports of whatever they find
                self.broken += 1
                continue
            hook.pytest_runtest_logreport(report=report)
        for report in self._list_unended():
            hook.pytest_runtest_logreport(report=report)
        return True

    def _read(self, report: pytest.TestReport) -> None:
        """Read all that the reporters read of a report, so that none of them meets what it cannot read."""
        read_verdicts(report)
        read_unchecked(report)
        for kind in self._kinds:
            kind.read(report)
        for name, value in report.user_properties:
            if name == CANDIDATE_PROPERTY:
                Baselines.from_json(json.loads(str(value)), "journal", self._kept.head.hardware_key)
        _ = report.longreprtext

    def pytest_sessionfinish(self) -> None:
        """Writes the results."""
        self._file.write()

    def _list_unended(self) -> Sequence[pytest.TestReport]:
        reports = []
        for nodeid, location in self._kept.running.items():
            keywords: dict[str, Literal[1]] = {RANKS_KEYWORD: 1}
            reports.append(pytest.TestReport(nodeid, location, keywords, "failed", KILLED, "call"))
            reports.append(pytest.TestReport(nodeid, location, keywords, "passed", None, "teardown"))
        return reports
