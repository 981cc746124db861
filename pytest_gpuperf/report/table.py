"""The verdicts of a run as a table of plain text: worst first, numbers whole, long test ids shortened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.report.change import compute_stored_change, show_change
from pytest_gpuperf.report.units import format_count, format_percent, format_value
from pytest_gpuperf.verdicts.outcome import Effect, Outcome
from pytest_gpuperf.verdicts.verdict import Verdict

COLUMNS = ("verdict", "value", "baseline", "change", "spread", "of limit", "metric")

_COLOURS = {Effect.FAILS: "red", Effect.SKIPS: "yellow", Effect.PASSES: ""}
_OF_PASSES = {Outcome.EXPECTED: "yellow", Outcome.IMPROVED: "green"}
_LEAST_ROOM = 12  # characters of a test's id; on a terminal narrower than that takes, lines wrap
_ELLIPSIS = "..."
_FEW = 3  # tests that one reason names


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text, and the name of its colour in pytest's markup."""

    text: str
    colour: str = ""


def rank_verdicts(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts worst first; of one outcome, the largest loss first."""
    return sorted(verdicts, key=lambda verdict: (verdict.outcome.severity, compute_stored_change(verdict) or 0.0))


def format_cells(verdict: Verdict) -> tuple[str, ...]:
    """What a verdict says in each column but the last."""
    metric, baseline = verdict.metric, verdict.baseline
    old = verdict.old if baseline is None else baseline.center
    return (
        verdict.outcome.value,
        format_value(metric.value, metric.unit),
        "" if old is None else format_value(old, metric.unit if baseline is None else baseline.unit),
        show_change(verdict),
        "" if baseline is None else format_percent(baseline.sigma_b),
        "" if metric.share_of_limit is None else format_percent(metric.share_of_limit),
    )


def choose_colour(verdict: Verdict) -> str:
    """Return the name of a verdict's colour in pytest's markup; empty for none."""
    return _OF_PASSES.get(verdict.outcome, _COLOURS[verdict.effect])


def describe_counts(verdicts: Sequence[Verdict]) -> str:
    """How many metrics came to which outcome, worst first, and on which machine."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    total = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    machines = ", ".join(sorted({verdict.hardware_key for verdict in verdicts}))
    return f"{format_count(len(verdicts), 'metric')} on {machines}: {total}"


def format_verdict_table(verdicts: Sequence[Verdict], *, width: int | None = None) -> list[Line]:
    """The verdicts as lines of a table, and a line that counts them.

    Args:
        verdicts: In any order.
        width: Characters of a line, for which the ids of tests are shortened; None for no limit.
    """
    return [*_format_rows(rank_verdicts(verdicts), width), Line(describe_counts(verdicts))] if verdicts else []


def describe_expectations(verdicts: Sequence[Verdict]) -> list[Line]:
    """Why regressions passed, and the expectations that nothing needs any more."""
    lines = []
    for verdict in verdicts:
        known, name = verdict.expected, f"{verdict.test} {verdict.metric_name}"
        if known is None:
            continue
        if verdict.outcome is Outcome.EXPECTED:
            lines.append(Line(f"expected until {known.until}: {name}: {known.reason}", "yellow"))
        elif verdict.outcome in (Outcome.SAME, Outcome.IMPROVED):
            lines.append(Line(f'no longer regressed: {name}: delete its entry under "expected" in the baselines'))
    return lines


def describe_unchecked(unchecked: Sequence[tuple[str, str]]) -> list[Line]:
    """Which metrics have a baseline and were not checked, each given as test and metric."""
    if not unchecked:
        return []
    what = "1 metric with a baseline was" if len(unchecked) == 1 else f"{len(unchecked)} metrics with a baseline were"
    names = ", ".join(f"{test} {name}" for test, name in unchecked)
    return [Line(f"{what} not checked: {names}", "yellow")]


def skip_lines(skips: Counter[tuple[str, str]], *, fold: bool = False) -> list[Line]:
    """The tests that did not run, by reason.

    Args:
        skips: How many variants, by reason and test.
        fold: Whether the tests of a reason are only counted, if there are more than a few.
    """
    lines = []
    for reason in sorted({reason for reason, _ in skips}):
        tests = {test: count for (why, test), count in skips.items() if why == reason}
        folded = fold and len(tests) > _FEW
        more = " (-v lists them)" if folded else ""
        lines.append(Line(f"{format_count(sum(tests.values()), 'test')} did not run: {reason}{more}", "yellow"))
        if folded:
            continue
        lines += [Line(f"  {test}{f' ({count})' if count > 1 else ''}") for test, count in sorted(tests.items())]
    return lines


def shorten(text: str, room: int) -> str:
    """The text with its middle left out where it is longer than the room; both ends tell tests apart."""
    if len(text) <= room:
        return text
    kept = max(2, room - len(_ELLIPSIS))
    return text[: kept // 2] + _ELLIPSIS + text[len(text) - (kept - kept // 2) :]


def _format_rows(verdicts: Sequence[Verdict], width: int | None) -> list[Line]:
    if not verdicts:
        return []
    columns = list(zip(COLUMNS[:-1], *map(format_cells, verdicts), strict=True))
    # A column that holds nothing would take its room from the tests' ids.
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns if any(column[1:])]
    header, *rows = ["  ".join([*row, ""]) for row in zip(*padded, strict=True)]
    lines = [Line(header + COLUMNS[-1])]
    for verdict, before in zip(verdicts, rows, strict=True):
        after = f" {verdict.metric_name}"
        room = len(verdict.test) if width is None else max(_LEAST_ROOM, width - len(before) - len(after))
        lines.append(Line(before + shorten(verdict.test, room) + after, choose_colour(verdict)))
    return lines
