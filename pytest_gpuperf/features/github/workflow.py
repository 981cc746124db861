"""What a workflow on GitHub is told: a job summary, and annotations at the tests that failed.

Written by the process that has all reports, never by xdist's workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from pytest_gpuperf.features.github.markdown import format_markdown
from pytest_gpuperf.report.annotation import Annotation
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.report.place import Place
from pytest_gpuperf.report.table import rank_verdicts
from pytest_gpuperf.report.terminal import Reported
from pytest_gpuperf.report.verdict_line import describe

SUMMARY_LIMIT = 2**20  # bytes for each step; more, and GitHub drops all of it
MESSAGE_LIMIT = 4096  # characters; the whole text of a failure is in the log anyway


class GitHub:
    """Writes the job summary and the annotations when the run has ended."""

    def __init__(
        self,
        reported: Reported,
        remarks: Callable[[], Iterable[Annotation]] = list,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Nothing is written yet.

        Args:
            reported: what the run came to.
            remarks: returns what features remark about lines of source.
            environ: the workflow's variables.
        """
        self._remarks = remarks
        self._closing_lines = reported.closing_lines
        self._findings = reported.findings
        self._rootpath = reported.rootpath
        self._commands = reported.commands
        self._environ = environ

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Appends to the file that the workflow names, and prints the annotations."""
        if path := self._environ.get("GITHUB_STEP_SUMMARY"):
            problem = self._write(Path(path))
            if problem is not None:
                terminalreporter.write_line(problem, red=True)
        if self._environ.get("GITHUB_ACTIONS") == "true":
            for line in (*self._yield_annotations(), *self._yield_remark_lines()):
                terminalreporter.write_line(line)

    def _write(self, path: Path) -> str | None:
        try:
            # What other commands of this step have written counts too.
            room = SUMMARY_LIMIT - (path.stat().st_size if path.exists() else 0)
            text = format_markdown(self._findings, self._closing_lines(self._findings.verdicts), room)
            if text:
                with path.open("a", encoding="utf-8") as file:
                    file.write(text)
        except OSError as error:
            return (
                f"gpuperf: the job summary could not be appended to GITHUB_STEP_SUMMARY={str(path)!r}: "
                f"{error.strerror}; expected a file that can be written: let GitHub set the variable, or unset it"
            )
        return None

    def _yield_annotations(self) -> Iterator[str]:
        for verdict in rank_verdicts([v for v in self._findings.verdicts if v.fails]):
            title = make_one_line(f"{verdict.outcome.value}: {verdict.test} {verdict.metric_name}")
            message = "\n".join(describe(verdict, self._commands))
            yield format_annotation(*self._locate(self._findings.places[verdict.test]), title, message)
        for failure in self._findings.failures:
            phase = "" if failure.when == "call" else f" in its {failure.when}"
            title = f"failed{phase}: {failure.test}"
            yield format_annotation(*self._locate(failure.place), title, failure.message)

    def _yield_remark_lines(self) -> Iterator[str]:
        for remark in self._remarks():
            file, line = self._locate(Place(str(remark.file), remark.line))
            yield format_annotation(file, line, make_one_line(remark.title), remark.message, level="warning")

    def _locate(self, place: Place) -> tuple[str, int | None]:
        file = self._rootpath / place.file
        checkout = self._environ.get("GITHUB_WORKSPACE")
        # GitHub looks for the file in the repository, whose root need not be pytest's.
        base = Path(checkout) if checkout and file.is_relative_to(checkout) else self._rootpath
        return file.relative_to(base).as_posix() if file.is_relative_to(base) else file.as_posix(), place.line


def format_annotation(file: str, line: int | None, title: str, message: str, *, level: str = "error") -> str:
    """The workflow command that makes an annotation.

    Args:
        file: as the repository names it.
        line: 1 and up; None if unknown.
        title: on one line.
        message: cut if it is long.
        level: ``error`` or ``warning``.
    """
    told = message if len(message) <= MESSAGE_LIMIT else f"{message[:MESSAGE_LIMIT]}..."
    place = f"file={_escape_property(file)}" + ("" if line is None else f",line={line}")
    return f"::{level} {place},title={_escape_property(title)}::{_escape_data(told)}"


def _escape_data(text: str) -> str:
    # As @actions/core escapes them; the percent sign first.
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
