"""The findings of a run as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.one_line import one_line
from pytest_gpuperf.report.table import COLUMNS, cells, count_lines, rank_verdicts, unchecked_lines
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.verdicts.verdict import Verdict

_ALIGNMENT = "|---|--:|--:|--:|--:|--:|---|"
_CLOSED = "</details>\n"
# Inside <code>, Markdown still reads these; a reference to the character stands for itself and nothing else. An
# underscore between letters and digits is no emphasis, and stays readable.
_SPECIAL = re.compile(r"[&<>|`*\\~$\[\]\"']|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown(findings: Findings, closing: Sequence[str], limit: int) -> str:
    """The whole summary of a run; empty if there is nothing to say.

    Args:
        findings: Of the run.
        closing: What the run itself has to say, a line each.
        limit: Bytes of UTF-8 that it may have; what does not fit is left out, and a line says so.
    """
    if not (findings.verdicts or findings.outcomes or closing):
        return ""
    unchecked = [line.text for line in unchecked_lines(findings.unchecked)]
    pieces = [_head(findings), *_table(findings.verdicts), *_skips(findings.nowhere)]
    pieces += [f"\n{_text(line)}\n" for line in (*unchecked, *closing)]
    return _fit_in(pieces, limit)


def escape(text: str) -> str:
    """The text on one line, none of it read as Markdown or HTML."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", one_line(text))


def _head(findings: Findings) -> str:
    outcomes = ", ".join(f"{findings.outcomes[name]} {name}" for name in ("failed", "passed", "skipped"))
    lines = ["### gpuperf\n", f"{format_count(findings.outcomes.total(), 'test')} on ranks: {outcomes}\n"]
    if findings.verdicts:
        lines.append(f"{_text(count_lines(findings.verdicts))}\n")
    return "\n".join(lines)


def _table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    if not verdicts:
        return
    yield f"\n| {' | '.join([*COLUMNS[:-1], 'test and metric'])} |\n{_ALIGNMENT}\n"
    for verdict in rank_verdicts(verdicts):
        name = f"{_code(verdict.test)} {_code(verdict.metric_name)}"
        yield f"| {' | '.join([*map(_text, cells(verdict)), name])} |\n"


def _skips(skips: Counter[tuple[str, str]]) -> Iterator[str]:
    for reason in sorted({reason for reason, _ in skips}):
        tests = {test: count for (why, test), count in skips.items() if why == reason}
        # One piece: a block that is cut open would swallow what comes after it.
        lines = [f"- {_code(test)}{f' ({count})' if count > 1 else ''}\n" for test, count in sorted(tests.items())]
        summary = f"{format_count(sum(tests.values()), 'test')} did not run: {_text(reason)}"
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


def _text(text: str) -> str:
    """Return the text as a part of a sentence; GitHub reads an @ as a name wherever it is no code, escaped or not."""
    return _code(text) if "@" in text else escape(text)


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
