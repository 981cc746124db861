"""The findings of a run as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.report.table import COLUMNS, describe_counts, describe_unchecked, format_cells, rank_verdicts
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.verdicts.verdict import Verdict

_ALIGNMENT = "|---|--:|--:|--:|--:|--:|---|"
_CLOSED = "</details>\n"
# Inside <code>, Markdown still reads these; a reference to the character stands for itself and nothing else. An
# underscore between letters and digits is no emphasis, and stays readable.
_SPECIAL = re.compile(r"[&<>|`*\\~$\[\]\"']|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def format_markdown(findings: Findings, closing: Sequence[str], limit: int) -> str:
    """The whole summary of a run; empty if there is nothing to say.

    Args:
        findings: Of the run.
        closing: What the run itself has to say, a line each.
        limit: Bytes of UTF-8 that it may have; what does not fit is left out, and a line says so.
    """
    if not (findings.verdicts or findings.outcomes or closing):
        return ""
    unchecked = [line.text for line in describe_unchecked(findings.unchecked)]
    pieces = [_format_head(findings), *_iterate_table(findings.verdicts), *_iterate_skips(findings.nowhere)]
    pieces += [f"\n{_format_text(line)}\n" for line in (*unchecked, *closing)]
    return _fit_in(pieces, limit)


def escape(text: str) -> str:
    """The text on one line, none of it read as Markdown or HTML."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", make_one_line(text))


def _format_head(findings: Findings) -> str:
    outcomes = ", ".join(f"{findings.outcomes[name]} {name}" for name in ("failed", "passed", "skipped"))
    lines = ["### gpuperf\n", f"{format_count(findings.outcomes.total(), 'test')} on ranks: {outcomes}\n"]
    if findings.verdicts:
        lines.append(f"{_format_text(describe_counts(findings.verdicts))}\n")
    return "\n".join(lines)


def _iterate_table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    if not verdicts:
        return
    yield f"\n| {' | '.join([*COLUMNS[:-1], 'test and metric'])} |\n{_ALIGNMENT}\n"
    for verdict in rank_verdicts(verdicts):
        name = f"{_format_code(verdict.test)} {_format_code(verdict.metric_name)}"
        yield f"| {' | '.join([*map(_format_text, format_cells(verdict)), name])} |\n"


def _iterate_skips(skips: Counter[tuple[str, str]]) -> Iterator[str]:
    for reason in sorted({reason for reason, _ in skips}):
        tests = {test: count for (why, test), count in skips.items() if why == reason}
        # One piece: a block that is cut open would swallow what comes after it.
        lines = [
            f"- {_format_code(test)}{f' ({count})' if count > 1 else ''}\n" for test, count in sorted(tests.items())
        ]
        summary = f"{format_count(sum(tests.values()), 'test')} did not run: {_format_text(reason)}"
        yield f"\n<details><summary>{summary}</summary>\n\n{''.join(lines)}\n{_CLOSED}"


def _fit_in(pieces: Sequence[str], limit: int) -> str:
    whole = "".join(pieces)
    if len(whole.encode()) <= limit:
        return whole
    kept: list[str] = []
    room = limit - len(_cut(len(pieces)).encode())
    for piece in pieces:
        room -= len(piece.encode())
        if room < 0:
            break
        kept.append(piece)
    return "".join(kept) + _cut(len(pieces) - len(kept)) if kept else ""


def _cut(left_out: int) -> str:
    return f"\n{left_out} more lines are left out: GitHub takes 1 MiB for each step.\n"


def _format_text(text: str) -> str:
    """Return the text as a part of a sentence; GitHub reads an @ as a name wherever it is no code, escaped or not."""
    return _format_code(text) if "@" in text else escape(text)


def _format_code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
