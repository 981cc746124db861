"""The plugin's part of pytest's terminal summary."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import pytest

from pytest_gpuperf.report.units import format_percent, format_value
from pytest_gpuperf.verdicts.judge import Outcome, Verdict

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

PROPERTY = "gpuperf"
"""Name of the report's user property that carries a test's verdicts as JSON."""

RANKS_KEYWORD = "gpuperf: test on ranks"
"""Among a report's keywords where the test runs on ranks; "ranks" alone may be the name of a folder too."""

# Worst first.
_ORDER = (
    Outcome.INVALID,
    Outcome.BROKEN,
    Outcome.REGRESSED,
    Outcome.MISSED,
    Outcome.MISSING,
    Outcome.STALE,
    Outcome.SUSPECT,
    Outcome.SHIFTED,
    Outcome.UNDECIDED,
    Outcome.DOUBTFUL,
    Outcome.EXPECTED,
    Outcome.IMPROVED,
    Outcome.SAME,
    Outcome.RECORDED,
    Outcome.UNJUDGED,
)


class Told(Protocol):
    """What the summary wants to know of the run."""

    def closing_lines(self) -> list[str]:
        """What became of a recording, and the like."""
        ...


class Summary:
    """Collects verdicts, and the tests on ranks that ran nowhere, from the reports, wherever the tests ran."""

    def __init__(self, run: Told) -> None:
        self._run = run
        self._verdicts: list[Verdict] = []
        self._skips: Counter[tuple[str, str]] = Counter()
        self._ran: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes note of one test's outcome."""
        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY:
                    self._verdicts += [Verdict.from_json(data) for data in json.loads(str(value))]
        if RANKS_KEYWORD not in report.keywords:
            return
        test = report.nodeid.partition("[")[0]
        judged = any(name == PROPERTY for name, _ in report.user_properties)  # also where nothing could be decided
        if report.skipped and not judged and isinstance(report.longrepr, tuple):
            self._skips[str(report.longrepr[2]).removeprefix("Skipped: "), test] += 1
        elif report.when == "call" or report.failed:
            self._ran.add(test)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Prints the verdicts, worst first, and the tests that ran in no variant, with the reasons."""
        closing = self._run.closing_lines()
        nowhere = Counter({key: count for key, count in self._skips.items() if key[1] not in self._ran})
        if not (self._verdicts or nowhere or closing):
            return
        terminalreporter.section("gpuperf")
        for line in [
            *verdict_table(self._verdicts),
            *expected_lines(self._verdicts),
            *skip_lines(nowhere),
            *closing,
        ]:
            terminalreporter.write_line(line)


def verdict_table(verdicts: list[Verdict]) -> list[str]:
    """The verdicts as lines of a table, worst first, and a line that counts them."""
    if not verdicts:
        return []
    ranked = sorted(verdicts, key=lambda verdict: (_ORDER.index(verdict.outcome), verdict.change or 0.0))
    rows: list[tuple[str, ...]] = [("verdict", "value", "baseline", "change", "spread", "of limit", "metric")]
    rows += [_row(verdict) for verdict in ranked]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    counts = Counter(verdict.outcome for verdict in verdicts)
    total = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in _ORDER if counts[outcome])
    return [
        *lines,
        f"{len(verdicts)} figures on {', '.join(sorted({v.hardware_key for v in verdicts}))}: {total}",
    ]


def expected_lines(verdicts: list[Verdict]) -> list[str]:
    """Why regressions passed, and the expectations that nothing needs any more."""
    lines = []
    for verdict in verdicts:
        known, name = verdict.expected, f"{verdict.test} {verdict.metric_name}"
        if known is None:
            continue
        if verdict.outcome is Outcome.EXPECTED:
            lines.append(f"expected until {known.until}: {name}: {known.reason}")
        elif verdict.outcome in (Outcome.SAME, Outcome.IMPROVED):
            lines.append(f'no longer regressed: {name}: delete its entry under "expected" in the baselines')
    return lines


def skip_lines(skips: Counter[tuple[str, str]]) -> list[str]:
    """The tests that ran nowhere, by reason."""
    lines = []
    for reason in sorted({reason for reason, _ in skips}):
        tests = {test: count for (why, test), count in skips.items() if why == reason}
        lines.append(f"{sum(tests.values())} tests ran nowhere: {reason}")
        lines += [f"  {test}{f' ({count})' if count > 1 else ''}" for test, count in sorted(tests.items())]
    return lines


def _row(verdict: Verdict) -> tuple[str, ...]:
    metric, baseline = verdict.metric, verdict.baseline
    limit = "" if metric.limit is None else format_percent(metric.value / metric.limit)
    return (
        verdict.outcome.value,
        format_value(metric.value, metric.unit),
        "" if baseline is None else format_value(baseline.center, baseline.unit),
        "" if verdict.change is None else format_percent(verdict.change, signed=True),
        "" if baseline is None else format_percent(baseline.sigma_b),
        limit,
        f"{verdict.test} {verdict.metric_name}",
    )
