"""What a run has reported so far, beside its file of results, so that a killed run leaves the tests that had ended."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import pytest

from pytest_gpuperf.baselines import files
from pytest_gpuperf.baselines.match import Scalar
from pytest_gpuperf.baselines.plain import OPTIONAL, Checked, make_mismatch, make_plain, read
from pytest_gpuperf.report.command_error import CommandError
from pytest_gpuperf.report.one_line import make_one_line

Location: TypeAlias = tuple[str, int | None, str]
"""As pytest has it: file, line from 0, name."""

MOST_LINE_BYTES = 16 << 20
"""The writer keeps every line within this bound, and the reader refuses a longer one. The file has no bound, because
the reader holds only one line and the reports of tests that run."""

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of a file system that cannot lock
_OUTPUT = 1 << 14  # characters that a line keeps of each captured output, and of a failure in a line that is too long
_OUTPUT_FRONT = 1 << 12  # of these; the end shows more of a failure


@dataclass(frozen=True, slots=True)
class Head:
    """The journal's first line: what the reports were made on."""

    hardware_key: str
    match: Mapping[str, Scalar]
    gpus: int
    rootpath: Annotated[str, Checked(lambda path: "\0" not in path, "a path")]
    smoke: bool = field(default=False, metadata=OPTIONAL)
    """Whether the run only tried bodies."""
    baselines: str = field(default="", metadata=OPTIONAL)
    """The folder of the baselines that the command line named; empty if it named none."""
    nodes: str = field(default="", metadata=OPTIONAL)
    """What the command line said of other nodes; empty if it said nothing."""
    delays: int | None = field(default=None, metadata=OPTIONAL)
    """The seed of the delays of ranks; None if they were not delayed."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a journal holds, except for the reports."""

    path: Path
    head: Head
    ended: int
    """How many tests have ended."""
    running: Mapping[str, Location]
    """Tests that began and did not end, by node id."""
    broken: int
    """Lines that cannot be read."""
    size: int
    """Bytes that were read: a run that lives may append more."""

    def reports(self) -> Iterator[Mapping[str, Any]]:
        """The reports of tests that have ended, as pytest serializes them. Reads the journal again, line by line.

        Raises:
            RunJournalError: The journal cannot be read any more.
        """
        try:
            for reports in _iterate_reports(self.path, self.size, _Tests()):
                yield from reports
        except OSError as error:
            raise _make_unreadable_error(self.path, error) from error


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
            raise make_mismatch("longrepr", given, "the failure")
        if self.outcome == "skipped" and self.wasxfail is None:
            read(_Skip, {"place": given}, "longrepr")


@dataclass(frozen=True, slots=True)
class _Skip:
    """Why and where a test was skipped."""

    place: Location


_PHASE = tuple(one.name for one in fields(_Phase))


class RunJournalError(CommandError):
    """A journal cannot be used; the message names the file, the problem, and the cure."""


def make_journal_path(results: Path) -> Path:
    """The place of the journal of a file of results."""
    return results.with_name(f"{results.name}.journal")


class RunJournal:
    """Appends each report as it arrives; a plugin of the process that has them all.

    A write reaches the kernel before the next test begins, so the end of this process loses nothing. Nothing is
    synced: the end of the machine takes the checkout with it.
    """

    def __init__(self, results: Path, head: Head) -> None:
        self._results = results
        self._path = make_journal_path(results)
        self._head = head
        self._config: pytest.Config | None = None
        self._stream: FileIO | None = None
        self._problem: OSError | None = None
        self.finished = False
        """Whether the results are written, so that nobody needs the journal."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Begins anew; what an earlier run left is gone.

        Raises:
            pytest.UsageError: Another run writes results to the same file.
        """
        self._config = session.config
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._stream = files.lock(self._path, flags)
            except BlockingIOError:
                raise pytest.UsageError(_say_taken(self._results)) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                self._stream = FileIO(files.open_regular(self._path, flags), "r+b")
            self._stream.truncate(0)
        except OSError as error:
            self._problem = error
        self._write(_encode({"head": make_plain(self._head)}))

    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> None:
        """Keeps which test runs."""
        self._write(_encode({"start": nodeid, "location": list(location)}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps one phase of a test."""
        if self._config is not None:
            hook = self._config.hook
            data = hook.pytest_report_to_serializable(config=self._config, report=report)
            # xdist's controller adds the worker, an object of this process alone.
            self._write(_encode_report({name: value for name, value in data.items() if name != "node"}))

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

    def _write(self, raw: bytes) -> None:
        if self._stream is None or self._problem is not None:
            return
        try:
            if self._stream.write(raw) != len(raw):
                raise OSError("only a part of a line was written: the disk is full")
        except OSError as error:
            self._problem = error


def read_journal(path: Path) -> Told:
    """Reads a journal; a last line that a kill has cut is left out.

    Raises:
        RunJournalError: It cannot be read, or its first line is broken.
    """
    tests, ended = _Tests(), set[str]()
    try:
        head, size = _read_head(path), path.stat().st_size
        for reports in _iterate_reports(path, size, tests):
            ended.update(report["nodeid"] for report in reports)
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _make_unreadable_error(path, error) from error
    return Told(path, head, len(ended), tests.running, tests.broken, size)


class _Tests:
    """The tests of a journal that have begun and not ended, while its lines are read."""

    def __init__(self) -> None:
        self.running: dict[str, Location] = {}
        self.broken = 0
        self._reports: dict[str, list[Mapping[str, Any]]] = {}

    def take(self, line: bytes) -> list[Mapping[str, Any]]:
        """Takes a line; returns all reports of a test if this is its last one."""
        try:
            entry = json.loads(line)
            if "report" not in entry:
                started = read(_Start, entry, "line")
                self.running[started.start] = started.location
                return []
            report = entry["report"]
            phase = read(_Phase, {name: report[name] for name in _PHASE if name in report}, "line.report")
        except (KeyError, TypeError, ValueError, RecursionError):
            self.broken += 1
            return []
        self._reports.setdefault(phase.nodeid, []).append(report)
        if phase.when != "teardown":
            return []
        self.running.pop(phase.nodeid, None)
        return self._reports.pop(phase.nodeid)


def _read_head(path: Path) -> Head:
    with FileIO(files.open_regular(path, os.O_RDONLY, follow=True), "rb") as raw, BufferedReader(raw) as stream:
        line = stream.readline(MOST_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise ValueError(f"a first line without an end within {MOST_LINE_BYTES} bytes")
    head: Head = read(Head, json.loads(line)["head"], "head")
    return head


def _iterate_reports(path: Path, size: int, tests: _Tests) -> Iterator[list[Mapping[str, Any]]]:
    """The reports of one test after another, in the order in which they ended."""
    with FileIO(files.open_regular(path, os.O_RDONLY, follow=True), "rb") as raw, BufferedReader(raw) as stream:
        stream.readline(MOST_LINE_BYTES)  # the head
        while stream.tell() < size and (line := stream.readline(MOST_LINE_BYTES)):
            whole = line.endswith(b"\n")
            while not whole and (rest := stream.readline(MOST_LINE_BYTES)):
                line, whole = b"", rest.endswith(b"\n")  # too long: broken
            if whole:
                yield tests.take(line)


def _make_unreadable_error(path: Path, error: Exception) -> RunJournalError:
    return RunJournalError(
        f"journal {str(path)!r} has no first line that can be read: got {error!r}: run the tests again"
    )


def _say_taken(results: Path) -> str:
    return make_one_line(
        f"--gpuperf-json: got {str(results)!r}, which another run is writing, expected a file of this run alone: name "
        "another file, or wait until that run has ended, with all processes that its tests forked"
    )


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, default=str).encode() + b"\n"


def _encode_report(report: Mapping[str, Any]) -> bytes:
    """The line of a report; of long output it keeps the beginning and the end."""
    sections = [(title, _cut(text)) for title, text in report.get("sections", ())]
    line = _encode({"report": {**report, "sections": sections}})
    if len(line) <= MOST_LINE_BYTES:
        return line
    note = f"this report was longer than {MOST_LINE_BYTES} bytes, so the journal left out its output and properties"
    less = {"sections": [("gpuperf", note)], "user_properties": [], "longrepr": _cut_failure(report.get("longrepr"))}
    return _encode({"report": {**report, **less}})


def _cut(text: str) -> str:
    left_out = len(text) - _OUTPUT
    if left_out <= 0:
        return text
    kept = f"the journal of a killed run keeps {_OUTPUT} of an output"
    note = f"[gpuperf: {left_out} characters are left out here: {kept}]"
    return f"{text[:_OUTPUT_FRONT]}\n{note}\n{text[_OUTPUT_FRONT - _OUTPUT :]}"


def _cut_failure(longrepr: Any) -> Any:
    if isinstance(longrepr, Mapping):
        longrepr = (longrepr.get("reprcrash") or {}).get("message")
    return _cut(longrepr) if isinstance(longrepr, str) else longrepr
