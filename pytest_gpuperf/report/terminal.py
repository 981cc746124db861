"""The plugin's part of pytest's terminal summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from pytest_gpuperf.report.curves import CURVES
from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.host_lines import describe_host_bound
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.report.overview import Overview, describe_smoke
from pytest_gpuperf.report.table import (
    Line,
    describe_expectations,
    describe_unchecked,
    format_verdict_table,
    skip_lines,
)
from pytest_gpuperf.report.verdict_line import VerdictCommands
from pytest_gpuperf.verdicts.verdict import Verdict

ClosingLines: TypeAlias = Callable[[Sequence[Verdict]], list[str]]
"""What the run as a whole has to say at its end, if it came to these verdicts."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What a run came to, for those who tell of it."""

    closing_lines: ClosingLines
    """What the run as a whole has to say."""
    findings: Findings
    """What its tests came to."""
    commands: VerdictCommands
    """Makes the commands of a test."""
    rootpath: Path
    """To which the files of tests are relative."""


class Summary:
    """Prints the verdicts, worst first, and the tests that ran in no variant, with the reasons."""

    def __init__(
        self, closing_lines: ClosingLines, findings: Findings, commands: VerdictCommands, *, smoke: bool = False
    ) -> None:
        """Nothing is printed yet.

        Args:
            closing_lines: What the run as a whole has to say.
            findings: What its tests came to.
            commands: Makes the commands of a test.
            smoke: Whether it only tries bodies.
        """
        self._closing_lines = closing_lines
        self._findings = findings
        self._commands = commands
        self._smoke = smoke

    # pytest-benchmark's table has no heading, and would look like a part of this section: it goes first. With
    # --benchmark-compare-fail it ends in an exception.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> Generator[None, None, None]:
        """Prints the section, if there is anything to say, after those of other plugins."""
        try:
            yield
        finally:
            self._print(terminalreporter, config)

    def _format_figures(self, width: int | None, *, verbose: bool) -> list[Line]:
        verdicts = self._findings.verdicts
        if self._smoke:
            return describe_smoke(verdicts)
        if verbose:
            return format_verdict_table(verdicts, width=width)
        encoding = getattr(sys.__stdout__, "encoding", None) or "ascii"
        ascii_only = not encoding.lower().startswith("utf")
        return Overview(verdicts, self._commands, self._findings.shown.of(CURVES), width, ascii_only).lines()

    def _print(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        # A pipe or a file has no width: what is grepped there must be whole.
        width = config.get_terminal_writer().fullwidth if terminalreporter.isatty else None
        lines = [
            *self._format_figures(width, verbose=config.get_verbosity() > 0),
            *self._findings.shown.lines(),
            *describe_expectations(self._findings.verdicts),
            *describe_host_bound(self._findings.verdicts, fold=config.get_verbosity() < 1),
            *describe_unchecked(self._findings.unchecked),
            *skip_lines(self._findings.nowhere, fold=config.get_verbosity() < 1),
            *map(Line, self._closing_lines(self._findings.verdicts)),
        ]
        if not lines:
            return
        terminalreporter.write_sep("=", "gpuperf")  # section() would leave an empty line behind pytest's dots
        for line in lines:
            terminalreporter.write_line(make_one_line(line.text), **({line.colour: True} if line.colour else {}))
