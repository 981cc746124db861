"""What a recording has measured so far: a line for each test of each launch, so that it can go on after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from pytest_gpuperf.baselines import files
from pytest_gpuperf.baselines.json_text import parse
from pytest_gpuperf.baselines.match import Scalar, describe_difference
from pytest_gpuperf.baselines.plain import OPTIONAL, cut, make_plain, read
from pytest_gpuperf.baselines.schema import Count, LaunchInfo
from pytest_gpuperf.figures.metric import Metric

ANEW = "record anew with --no-resume"
_MANY = 3  # tests that a message names


class JournalError(Exception):
    """A journal cannot be gone on with; the message names file, what differs, and the cure."""

    def __init__(self, path: Path, problem: str, cure: str = ANEW) -> None:
        super().__init__(path, problem, cure)
        self.path, self.problem, self.cure = path, problem, cure

    def __str__(self) -> str:
        return f"journal {str(self.path)!r}: {self.problem}: {self.cure}"


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """What a recording is of: metrics of another one do not belong to it."""

    hardware_key: str
    commit: str
    launches: Count
    tests: Mapping[str, str]
    """Body hash by node id."""
    match: Mapping[str, Scalar] = field(default_factory=dict, metadata=OPTIONAL)
    """Facts of the machine."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one test measured in one launch."""

    number: Count
    """The number of the launch."""
    launch: str
    """Its id."""
    info: LaunchInfo
    test: str
    body_hash: str
    metrics: Mapping[str, Metric]


@dataclass(frozen=True, slots=True)
class _FirstLine:
    plan: RecordingPlan


class Journal:
    """The open file of a recording that runs."""

    def __init__(self, path: Path, stream: FileIO) -> None:
        self.path = path
        self._stream = stream

    @classmethod
    def begin(cls, path: Path, plan: RecordingPlan, *, spare: bool = False) -> Journal:
        """Starts anew; what an earlier recording left is gone.

        Args:
            path: The file.
            plan: What is recorded.
            spare: Whether to refuse as ``spare`` does. The file is locked, so no other recording can write meanwhile.

        Raises:
            JournalError: Another recording runs, or what an interrupted one had measured would be lost.
            OSError: The file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        journal = cls(path, _lock(path, os.O_RDWR | os.O_APPEND | os.O_CREAT))
        try:
            if spare:
                _require_nothing_kept(path, journal._stream, plan)
            journal._stream.truncate(0)
            journal._write(_FirstLine(plan))
        except (OSError, JournalError):
            journal.close()
            raise
        return journal

    @classmethod
    def resume(cls, path: Path, plan: RecordingPlan) -> tuple[Journal, list[Entry]]:
        """Goes on with what an earlier recording left.

        Raises:
            JournalError: There is none, it is broken, it is of another plan, or its recording still runs.
        """
        try:
            stream = _lock(path, os.O_RDWR)
        except FileNotFoundError as error:
            raise JournalError(path, "there is none, so nothing was interrupted", "drop --resume") from error
        except OSError as error:
            raise JournalError(path, f"cannot be read: got {error!r}") from error
        try:
            raw = _read_contents(path, stream)
            whole = raw[: raw.rfind(b"\n") + 1]  # a kill may have cut the last line
            entries = _parse_entries(path, whole.splitlines(), plan)
            stream.truncate(len(whole))
            stream.seek(0, os.SEEK_END)
        except BaseException:
            stream.close()
            raise
        return cls(path, stream), entries

    @classmethod
    def spare(cls, path: Path, plan: RecordingPlan) -> None:
        """Refuses to lose what a recording had measured when it was interrupted.

        Raises:
            JournalError: There is such a journal, of this recording or of another; nobody can go on with a broken one.
        """
        try:
            stream = _lock(path, os.O_RDWR)
        except (OSError, JournalError):
            return
        with stream:
            _require_nothing_kept(path, stream, plan)

    def note(self, entry: Entry) -> None:
        """Keeps what a test measured, also if the machine stops now.

        Raises:
            OSError: The file cannot be written.
        """
        self._write(entry)

    def close(self) -> None:
        """Leaves the file for a later recording to go on with."""
        self._stream.close()

    def remove(self) -> None:
        """The recording is written: nothing to go on with."""
        with suppress(OSError):  # its folder may have gone, and the metrics are safe
            self.path.unlink()
        self.close()

    def _write(self, value: Entry | _FirstLine) -> None:
        line = json.dumps(make_plain(value), allow_nan=False).encode() + b"\n"
        if self._stream.write(line) != len(line):
            raise OSError(f"{self.path} took only a part of a line: the disk is full")
        os.fsync(self._stream.fileno())


def _lock(path: Path, flags: int) -> FileIO:
    try:
        return files.lock(path, flags)
    except BlockingIOError as error:
        raise JournalError(path, "another run is recording this hardware", "wait until it has ended") from error


def _require_nothing_kept(path: Path, stream: FileIO, plan: RecordingPlan) -> None:
    """Refuses to lose what the locked file keeps; it does not keep a broken one, with which nobody can go on."""
    try:
        raw = files.read_contents(stream)
        lines = raw[: raw.rfind(b"\n") + 1].splitlines()  # a kill may have cut the last line
        kept = _plan(lines[0])
        entries = _parse_entries(path, lines, kept)
    except (OSError, IndexError, ValueError, RecursionError, JournalError):
        return
    if not entries:
        return
    launches = f"{len({entry.number for entry in entries})} of the {kept.launches} launches"
    try:
        _require_same_plan(path, kept, plan)
    except JournalError as other:
        problem = f"it keeps metrics of {launches} of another recording: {other.problem}"
        cure = "go on with that one by its command and --resume, or drop it by --no-resume"
        raise JournalError(path, problem, cure) from None
    problem = f"it keeps metrics of {launches} of this recording"
    raise JournalError(path, problem, "go on with it by --resume, or drop it by --no-resume")


def _read_contents(path: Path, stream: FileIO) -> bytes:
    try:
        return files.read_contents(stream)
    except OSError as error:
        raise JournalError(path, f"cannot be read: got {error!r}") from error


def _parse_entries(path: Path, lines: list[bytes], plan: RecordingPlan) -> list[Entry]:
    if not lines:
        raise JournalError(path, "it is empty, so nothing was measured")
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            if number == 1:
                _require_same_plan(path, _plan(line), plan)
                continue
            entry = read(Entry, parse(line, "line"), "line")
        except (ValueError, RecursionError) as error:
            raise JournalError(path, f"line {number} is broken: {error}") from error
        if plan.tests.get(entry.test) != entry.body_hash or entry.number > plan.launches:
            raise JournalError(
                path, f"line {number} is of {cut(entry.test)!r} in launch {entry.number}, which is not due"
            )
        entries.append(entry)
    return entries


def _plan(line: bytes) -> RecordingPlan:
    return read(_FirstLine, parse(line, "line"), "line").plan


def _require_same_plan(path: Path, was: RecordingPlan, plan: RecordingPlan) -> None:
    for name in ("hardware_key", "commit", "launches"):
        before, after = getattr(was, name), getattr(plan, name)
        if before != after:
            told = cut(before) if isinstance(before, str) else before
            raise JournalError(
                path, f"its recording was of {name} {told!r}, this one is of {after!r}", _describe_cure(name)
            )
    if why := describe_difference(was.match, plan.match):
        raise JournalError(path, f"{why}, with which its recording began", f"go on on the same GPUs, or {ANEW}")
    for what, tests in (
        ("without", was.tests.keys() - plan.tests.keys()),
        ("with", plan.tests.keys() - was.tests.keys()),
        ("with another body of", {test for test in plan.tests if was.tests.get(test) != plan.tests[test]}),
    ):
        if tests:
            named = [cut(test) for test in sorted(tests)[:_MANY]] + (
                [f"{len(tests) - _MANY} more"] if len(tests) > _MANY else []
            )
            cure = f"select the same tests, or {ANEW}"
            raise JournalError(path, f"this recording is {what} {', '.join(named)}", cure)


def _describe_cure(name: str) -> str:
    return {
        "commit": f"check that commit out, or {ANEW}",
        "launches": f"pass the same --launches, or {ANEW}",
    }.get(name, ANEW)


def require_same_software(path: Path, entries: list[Entry], environment: Mapping[str, str]) -> None:
    """Refuses to mix launches of two installations.

    Raises:
        JournalError: The entries were measured with other versions than these.
    """
    for entry in entries:
        was = entry.info.environment
        for name in sorted({*was, *environment}):
            if was.get(name) != environment.get(name):
                before, now = was.get(name), environment.get(name)
                told = None if before is None else cut(before)
                problem = f"its launches ran with {cut(name)} {told!r}, now it is {now!r}"
                raise JournalError(path, problem, f"install that version, or {ANEW}")
