"""What a run's metrics came to, at a glance: one line a test, the worst first, all others by file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pytest_gpuperf.report.change import compute_stored_change, show_change
from pytest_gpuperf.report.curves import describe_curve
from pytest_gpuperf.report.headline import TestFigures, group_by_test
from pytest_gpuperf.report.table import Line, choose_colour, describe_counts, shorten
from pytest_gpuperf.report.units import format_count, format_percent, format_value
from pytest_gpuperf.report.verdict_line import VerdictCommands, describe_outcome, list_details
from pytest_gpuperf.verdicts.outcome import Effect, Outcome, Reason
from pytest_gpuperf.verdicts.verdict import Verdict

LINES = 60  # of tests that came to nothing bad; more of them are counted by file
_LEAST_ROOM = 12  # characters of a test's name
_COLUMNS = ("verdict", "change", "value", "of limit")
_CALM = (Outcome.SAME, Outcome.RECORDED)


@dataclass(frozen=True, slots=True)
class Overview:
    """The tests with metrics of a run."""

    verdicts: Sequence[Verdict]
    commands: VerdictCommands
    """Makes the commands of a test."""
    curves: Sequence[Mapping[str, Any]] = ()
    width: int | None = None
    """Characters of a line; None for no limit."""
    ascii_only: bool = False
    """Whether the output can hold no other characters."""
    tests: Sequence[TestFigures] = field(init=False)
    widths: Sequence[int] = field(init=False)
    """Characters of each column; 0 of one that holds nothing."""

    def __post_init__(self) -> None:
        """Finds the metric of each test that matters."""
        object.__setattr__(self, "tests", group_by_test(self.verdicts))
        rows = [_format_cells(one) for one in self.verdicts if one.outcome is not Outcome.UNJUDGED]
        columns = zip(_COLUMNS, *rows, strict=True)
        object.__setattr__(self, "widths", [max(map(len, column)) if any(column[1:]) else 0 for column in columns])

    def lines(self) -> list[Line]:
        """Return what the summary prints; nothing without metrics."""
        if not self.verdicts:
            return []
        judged = [test for test in self.tests if test.outcome is not Outcome.UNJUDGED]
        odd = [test for test in judged if _is_odd(test.headline)]
        odd.sort(key=lambda test: (test.outcome.severity, compute_stored_change(test.headline) or 0.0))
        rest = [test for test in judged if not _is_odd(test.headline)]
        shown = [test for test in rest if test.outcome is Outcome.MISSING or len(rest) <= LINES]
        counts = [test for test in rest if test not in shown]
        header = [Line(f"{self._format_row(_COLUMNS, 0)}  test")] if odd or shown else []
        return [
            *header,
            *self._describe_odd(odd),
            *self._list_by_file(shown),
            *_count_by_file(counts),
            *self._describe_unjudged(),
            Line(describe_counts(self.verdicts)),
        ]

    def _format_row(self, cells: Sequence[str], indent: int) -> str:
        """Return the cells of a row that is indented by so many characters; a column that is empty has no room."""
        word, *numbers = cells
        verdict, *widths = self.widths
        shown = [cell.rjust(width) for cell, width in zip(numbers, widths, strict=True) if width]
        return "  ".join([word.ljust(verdict + 2 - indent), *shown])

    def _describe_odd(self, tests: Sequence[TestFigures]) -> list[Line]:
        lines = []
        for test in tests:
            # The whole id, whatever the width: it is what a person copies to run the test again.
            lines.append(Line(test.test))
            judged = [one for one in (test.headline, *test.others) if one.outcome not in (*_CALM, Outcome.UNJUDGED)]
            for verdict in judged:
                colour = choose_colour(verdict)
                lines.append(Line(f"  {self._format_row(_format_cells(verdict), 2)}  {verdict.metric_name}", colour))
                lines += [
                    Line(f"    {line}", colour)
                    for line in (describe_outcome(verdict), *list_details(verdict, self.commands))
                ]
        return lines

    def _list_by_file(self, tests: Sequence[TestFigures]) -> list[Line]:
        lines = []
        ordered = sorted(tests, key=lambda test: test.file)  # stable: the order of the run within a file
        for file, group in groupby(ordered, key=lambda test: test.file):
            lines.append(Line(file))
            for test in group:
                lines += self._describe_test(test)
        return lines

    def _describe_test(self, test: TestFigures) -> list[Line]:
        """Return the test's line; a sweep's picture that does not fit into it is a second one."""
        colour = choose_colour(test.headline)
        curves = [describe_curve(one, ascii_only=self.ascii_only) for one in self.curves if one["test"] == test.test]
        judged = [one for one in test.others if one.outcome is not Outcome.UNJUDGED]
        after = f" {curves[-1]}" if curves else f" {test.headline.metric_name} +{len(judged)}" if judged else ""
        before = f"  {self._format_row(_format_cells(test.headline), 2)}  "
        if self.width is None or len(before) + len(test.name) + len(after) <= self.width:
            return [Line(before + test.name + after, colour)]
        below = [Line(f"    {curves[-1]}", colour)] if curves else []
        room = max(_LEAST_ROOM, self.width - len(before) - (0 if below else len(after)))
        return [Line(before + shorten(test.name, room) + ("" if below else after), colour), *below]

    def _describe_unjudged(self) -> list[Line]:
        lines = []
        for test in self.tests:
            shown = [one for one in (test.headline, *test.others) if one.outcome is Outcome.UNJUDGED]
            if shown:
                figures = self._join_fitting(
                    [f"{one.metric_name} {format_value(one.metric.value, one.metric.unit)}" for one in shown],
                    len(test.test),
                )
                room = len(test.test) if self.width is None else max(_LEAST_ROOM, self.width - len(figures) - 4)
                lines.append(Line(f"  {shorten(test.test, room)}: {figures}"))
        if not lines:
            return []
        if len(lines) > LINES:
            return [Line(f"not judged: metrics of {format_count(len(lines), 'test')} (-v lists them)")]
        return [Line("not judged:"), *lines]

    def _join_fitting(self, figures: Sequence[str], name: int) -> str:
        """Return the metrics that a line holds beside a name of so many characters, and count the others."""
        if self.width is None:
            return ", ".join(figures)
        room = self.width - min(name, self.width // 2) - len("  :  +99")
        count = len(figures)
        while count > 1 and len(", ".join(figures[:count])) > room:
            count -= 1
        more = f" +{len(figures) - count}" if count < len(figures) else ""
        return ", ".join(figures[:count]) + more


def _is_odd(verdict: Verdict) -> bool:
    """Whether the verdict says something of the machine or the code, beyond that a record is missing."""
    if verdict.outcome is Outcome.MISSING:
        return verdict.reason in (Reason.BELOW, Reason.ABOVE_MODEL, Reason.OWN_WORDS)
    return verdict.outcome not in _CALM


def _format_cells(verdict: Verdict) -> tuple[str, ...]:
    """Return what a row says ahead of the test's name."""
    metric = verdict.metric
    return (
        verdict.outcome.value,
        show_change(verdict),
        format_value(metric.value, metric.unit),
        "" if metric.share_of_limit is None else format_percent(metric.share_of_limit),
    )


def _count_by_file(tests: Sequence[TestFigures]) -> list[Line]:
    lines = []
    for file, group in groupby(sorted(tests, key=lambda test: test.file), key=lambda test: test.file):
        of_file = list(group)
        words = " and ".join(sorted({test.outcome.value for test in of_file}))
        lines.append(Line(f"{words}: {format_count(len(of_file), 'test')} of {file} (-v lists them)"))
    return lines


def describe_smoke(verdicts: Sequence[Verdict]) -> list[Line]:
    """Return what a run says that only tried bodies: its times are no metrics."""
    tests = {verdict.test for verdict in verdicts}
    if not tests:
        return []
    broken = {verdict.test for verdict in verdicts if verdict.outcome.effect is Effect.FAILS}
    tried, figures = format_count(len(tests), "perf test"), format_count(len(verdicts), "metric")
    lines = [Line(f"{tried} ran and handed over {figures}; --smoke judges none")]
    return lines if not broken else [*lines, Line(describe_counts(verdicts))]
