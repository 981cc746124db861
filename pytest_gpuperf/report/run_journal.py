"""What a run has reported so far, beside its file of results, so that a killed run leaves the tests that had ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import pytest

from pytest_gpuperf.baselines import files
from pytest_gpuperf.baselines.match import Scalar
from pytest_gpuperf.baselines.plain import OPTIONAL, Checked, mismatch, plain, read
from pytest_gpuperf.report.command_error import CommandError

Location: TypeAlias = tuple[str, int | None, str]
"""As pytest has it: file, line from 0, name."""


@dataclass(frozen=True, slots=True)
class Head:
    """The journal's first line: what the reports were made on."""

    hardware_key: str
    match: Mapping[str, Scalar]
    gpus: int
    rootpath: Annotated[str, Checked(lambda path: "\0" not in path, "a path")]


@dataclass(frozen=True, slots=True)
class Told:
    """What a journal holds."""

    head: Head
    reports: tuple[Mapping[str, Any], ...]
    """Of tests that have ended, as pytest serializes them."""
    running: Mapping[str, Location]
    """Tests that began and did not end, by node id."""
    broken: int
    """Lines that cannot be read."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A line about a test that begins."""

    start: str
    """The node id."""
    location: Location


@dataclass(frozen=True, slots=True)
class _Phase:
    """What must be in a report, beside whatever plugins add; without it pytest and this plugin raise."""

    nodeid: str
    location: Location
    keywords: Mapping[str, Any]
    outcome: str
    longrepr: Any
    when: Literal["setup", "call", "teardown"]
    sections: tuple[tuple[str, str], ...]
    duration: float
    user_properties: tuple[tuple[str, Any], ...]
    wasxfail: str | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        """Refuses a failure without its reason, and a skip without file, line and reason."""
        given = self.longrepr
        if self.outcome == "failed" and not isinstance(given, (str, dict)):
            raise mismatch("longrepr", given, "the failure")
        if self.outcome == "skipped" and self.wasxfail is None:
            read(_Skip, {"place": given}, "longrepr")


@dataclass(frozen=True, slots=True)
class _Skip:
    """Why and where a test was skipped."""

    place: Location


_PHASE = tuple(one.name for one in fields(_Phase))


class RunJournalError(CommandError):
    """A journal cannot be used; the message names the file, the problem, and the cure."""


def journal_of(results: Path) -> Path:
    """The place of the journal of a file of results."""
    return results.with_name(f"{results.name}.journal")


class RunJournal:
    """Appends each report as it arrives; a plugin of the process that has them all.

    A write reaches the kernel before the next test begins, so the end of this process loses nothing. Nothing is
    synced: the end of the machine takes the checkout with it.
    """

    def __init__(self, results: Path, head: Head) -> None:
        self._path = journal_of(results)
        self._head = head
        self._config: pytest.Config | None = None
        self._stream: FileIO | None = None
        self._problem: OSError | None = None
        self.finished = False
        """Whether the results are written, so that nobody needs the journal."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Begins anew; what an earlier run left is gone."""
        self._config = session.config
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = FileIO(files.opened(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "r+b")
            self._stream.truncate(0)
        except OSError as error:
            self._problem = error
        self._write({"head": plain(self._head)})

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        """Keeps which test runs."""
        self._write({"start": nodeid, "location": list(location)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps one phase of a test."""
        if self._config is not None:
            hook = self._config.hook
            data = hook.pytest_report_to_serializable(config=self._config, report=report)
            # xdist's controller adds the worker, an object of this process alone.
            self._write({"report": {name: value for name, value in data.items() if name != "node"}})

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Removes the journal if the run ended and its results are written."""
        if self._stream is None:
            return
        if self.finished:
            with suppress(OSError):
                self._path.unlink()
        self._stream.close()
        self._stream = None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Says that a kill would have lost the results."""
        if self._problem is not None:
            terminalreporter.write_line(
                f"gpuperf: journal {str(self._path)!r} could not be written: got {self._problem!r}, expected a file "
                "that keeps the results of a killed run: make room, or name another folder with --gpuperf-json"
            )

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._stream is None or self._problem is not None:
            return
        raw = json.dumps(line, default=str).encode() + b"\n"
        try:
            if self._stream.write(raw) != len(raw):
                raise OSError("only a part of a line was written: the disk is full")
        except OSError as error:
            self._problem = error


def told(path: Path) -> Told:
    """Reads a journal; a last line that a kill has cut is left out.

    Raises:
        RunJournalError: It cannot be read, or its first line is broken.
    """
    try:
        raw = files.read_bytes(path)
        lines = raw[: raw.rfind(b"\n") + 1].splitlines()
        head = read(Head, json.loads(lines[0])["head"], "head")
    except (OSError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunJournalError(
            f"journal {str(path)!r} has no first line that can be read: got {error!r}: run the tests again"
        ) from error
    running: dict[str, Location] = {}
    reports: dict[str, list[Mapping[str, Any]]] = {}
    ended: list[Mapping[str, Any]] = []
    broken = 0
    for line in lines[1:]:
        try:
            entry = json.loads(line)
            if "report" not in entry:
                started = read(_Start, entry, "line")
                running[started.start] = started.location
                continue
            report = entry["report"]
            phase = read(_Phase, {name: report[name] for name in _PHASE if name in report}, "line.report")
        except (TypeError, ValueError, RecursionError):
            broken += 1
            continue
        reports.setdefault(phase.nodeid, []).append(report)
        if phase.when == "teardown":
            running.pop(phase.nodeid, None)
            ended += reports.pop(phase.nodeid)
    return Told(head, tuple(ended), running, broken)
