"""What a recording has measured so far: a line for each test of each launch, so that it can go on after a kill."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path

from pytest_gpuperf.baselines import storage
from pytest_gpuperf.baselines.json_fields import Fields
from pytest_gpuperf.baselines.launch_info import LaunchInfo, launch_info
from pytest_gpuperf.baselines.match import Scalar, difference, scalars
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
class Plan:
    """What a recording is of: figures of another one do not belong to it."""

    hardware_key: str
    commit: str
    launches: int
    tests: Mapping[str, str]
    """Body hash by node id."""
    match: Mapping[str, Scalar] = field(default_factory=dict)
    """Facts of the machine."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one test measured in one launch."""

    number: int
    """Of the launch."""
    launch: str
    """Its id."""
    info: LaunchInfo
    test: str
    body_hash: str
    metrics: Mapping[str, Metric]

    def to_json(self) -> dict[str, object]:
        """Plain JSON types."""
        metrics = {name: metric.to_json() for name, metric in self.metrics.items()}
        info = self.info.to_json()
        return {
            "number": self.number,
            "launch": self.launch,
            "info": info,
            "test": self.test,
            "body_hash": self.body_hash,
            "metrics": metrics,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Entry:
        """Reads what to_json wrote.

        Raises:
            FieldError: Where the fields say anything else.
        """
        fields.only(*cls.__dataclass_fields__)
        return cls(
            number=fields.integer("number"),
            launch=fields.text("launch"),
            info=launch_info(fields.child("info")),
            test=fields.text("test"),
            body_hash=fields.text("body_hash"),
            metrics={
                name: Metric.from_json(dict(child.values), child.where) for name, child in fields.children("metrics")
            },
        )


class Journal:
    """The open file of a recording that runs."""

    def __init__(self, path: Path, stream: FileIO) -> None:
        self.path = path
        self._stream = stream

    @classmethod
    def begin(cls, path: Path, plan: Plan) -> Journal:
        """Starts anew; what an earlier recording left is gone.

        Raises:
            JournalError: Another recording runs.
            OSError: The file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        journal = cls(path, _locked(path, path.open("ab", buffering=0)))
        try:
            journal._stream.truncate(0)
            journal._write({"plan": asdict(plan)})
        except OSError:
            journal.close()
            raise
        return journal

    @classmethod
    def resume(cls, path: Path, plan: Plan) -> tuple[Journal, list[Entry]]:
        """Goes on with what an earlier recording left.

        Raises:
            JournalError: There is none, it is broken, it is of another plan, or its recording still runs.
        """
        try:
            stream = _locked(path, path.open("r+b", buffering=0))
            raw = stream.read()
        except FileNotFoundError as error:
            raise JournalError(path, "there is none, so nothing was interrupted", "drop --resume") from error
        except OSError as error:
            raise JournalError(path, f"cannot be read: got {error!r}") from error
        try:
            whole = raw[: raw.rfind(b"\n") + 1]  # a kill may have cut the last line
            entries = _entries(path, whole.splitlines(), plan)
            stream.truncate(len(whole))
            stream.seek(0, os.SEEK_END)
        except BaseException:
            stream.close()
            raise
        return cls(path, stream), entries

    @classmethod
    def spare(cls, path: Path, plan: Plan) -> None:
        """Refuses to lose what a recording had measured when it was interrupted.

        Raises:
            JournalError: There is such a journal, of this recording or of another; nobody can go on with a broken one.
        """
        try:
            lines = path.read_bytes().splitlines()
            kept = _plan(Fields.of(storage.parse(lines[0]), "line"))
            journal, entries = cls.resume(path, kept)
        except (OSError, IndexError, ValueError, RecursionError, JournalError):
            return
        journal.close()
        if not entries:
            return
        launches = f"{len({entry.number for entry in entries})} of the {kept.launches} launches"
        try:
            _same_plan(path, kept, plan)
        except JournalError as other:
            problem = f"it keeps figures of {launches} of another recording: {other.problem}"
            cure = "go on with that one by its command and --resume, or drop it by --no-resume"
            raise JournalError(path, problem, cure) from None
        problem = f"it keeps figures of {launches} of this recording"
        raise JournalError(path, problem, "go on with it by --resume, or drop it by --no-resume")

    def note(self, entry: Entry) -> None:
        """Keeps what a test measured, also if the machine stops now.

        Raises:
            OSError: The file cannot be written.
        """
        self._write(entry.to_json())

    def close(self) -> None:
        """Leaves the file for a later recording to go on with."""
        self._stream.close()

    def remove(self) -> None:
        """The recording is written: nothing to go on with."""
        with suppress(OSError):  # its folder may have gone, and the figures are safe
            self.path.unlink()
        self.close()

    def _write(self, data: object) -> None:
        line = json.dumps(data, allow_nan=False).encode() + b"\n"
        if self._stream.write(line) != len(line):
            raise OSError(f"{self.path} took only a part of a line: the disk is full")
        os.fsync(self._stream.fileno())


def _locked(path: Path, stream: FileIO) -> FileIO:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.close()
        raise JournalError(path, "another run is recording this hardware", "wait until it has ended") from error
    return stream


def _entries(path: Path, lines: list[bytes], plan: Plan) -> list[Entry]:
    if not lines:
        raise JournalError(path, "it is empty, so nothing was measured")
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            fields = Fields.of(storage.parse(line), "line")
            if number == 1:
                _same_plan(path, _plan(fields), plan)
                continue
            entry = Entry.from_json(fields)
        except (ValueError, RecursionError) as error:
            raise JournalError(path, f"line {number} is broken: {error}") from error
        if plan.tests.get(entry.test) != entry.body_hash or entry.number > plan.launches:
            raise JournalError(path, f"line {number} is of {entry.test!r} in launch {entry.number}, which is not due")
        entries.append(entry)
    return entries


def _plan(fields: Fields) -> Plan:
    fields.only("plan")
    plan = fields.child("plan")
    tests = plan.child("tests")
    return Plan(
        hardware_key=plan.text("hardware_key"),
        commit=plan.text("commit"),
        launches=plan.integer("launches"),
        tests={test: tests.text(test) for test in tests.values},
        match=scalars(plan.child("match")) if "match" in plan.values else {},
    )


def _same_plan(path: Path, was: Plan, plan: Plan) -> None:
    for name in ("hardware_key", "commit", "launches"):
        before, after = getattr(was, name), getattr(plan, name)
        if before != after:
            raise JournalError(path, f"its recording was of {name} {before!r}, this one is of {after!r}", _cure(name))
    if why := difference(was.match, plan.match):
        raise JournalError(path, f"{why}, with which its recording began", f"go on on the same GPUs, or {ANEW}")
    for what, tests in (
        ("without", was.tests.keys() - plan.tests.keys()),
        ("with", plan.tests.keys() - was.tests.keys()),
        ("with another body of", {test for test in plan.tests if was.tests.get(test) != plan.tests[test]}),
    ):
        if tests:
            named = sorted(tests)[:_MANY] + ([f"{len(tests) - _MANY} more"] if len(tests) > _MANY else [])
            cure = f"select the same tests, or {ANEW}"
            raise JournalError(path, f"this recording is {what} {', '.join(named)}", cure)


def _cure(name: str) -> str:
    return {
        "commit": f"check that commit out, or {ANEW}",
        "launches": f"pass the same --launches, or {ANEW}",
    }.get(name, ANEW)


def same_software(path: Path, entries: list[Entry], environment: Mapping[str, str]) -> None:
    """Refuses to mix launches of two installations.

    Raises:
        JournalError: The entries were measured with other versions than these.
    """
    for entry in entries:
        was = entry.info.environment
        for name in sorted({*was, *environment}):
            if was.get(name) != environment.get(name):
                problem = f"its launches ran with {name} {was.get(name)!r}, now it is {environment.get(name)!r}"
                raise JournalError(path, problem, f"install that version, or {ANEW}")
