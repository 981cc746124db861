"""The table of layouts. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """How an attempt ended."""

    RIGHT = "right"
    WRONG = "WRONG"
    NOT_TRIED = "not tried"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt to train in a layout."""

    layout: str
    start: str
    """Where it began: at step 1, or from whose checkpoint."""
    result: Result
    slack: float = 0.0
    """The smallest relative fault that would be seen."""
    first: str = ""
    """The first wrong tensor."""
    cause: str = ""
    why: str = ""
    """Why it was not tried, or what it raised."""


def format_table(rows: Sequence[Row]) -> list[str]:
    """Returns the table."""
    cells = [("layout", "from", "result", "slack", "first wrong tensor, cause")]
    for row in rows:
        slack = f"{row.slack:.1g}" if row.slack else "-"
        told = row.why or (f"{row.first}; cause: {row.cause}" if row.first else "")
        cells.append((row.layout, row.start, row.result.value, slack, told))
    widths = [max(len(cell[column]) for cell in cells) for column in range(4)]
    table = ["  ".join([*(c.ljust(w) for c, w in zip(cell, widths, strict=False)), cell[4]]).rstrip() for cell in cells]
    counts = {result: sum(row.result is result for row in rows) for result in Result}
    return [*table, ", ".join(f"{count} {result.value.lower()}" for result, count in counts.items() if count)]


def compute_status(rows: Sequence[Row]) -> int:
    """Returns the exit status: 0 if all is right, 1 if something is wrong, 4 if something was not judged."""
    results = {row.result for row in rows}
    if Result.WRONG in results:
        return 1
    return 0 if results == {Result.RIGHT} else 4
