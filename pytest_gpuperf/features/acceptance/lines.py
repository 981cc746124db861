"""The verdict in words: for a terminal, and as a table for the top of the page."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpuperf.features.acceptance.components import MACHINE, NUMBERS
from pytest_gpuperf.features.acceptance.verdict import Acceptance, Row, State

MOST = 40
"""Lines of the verdict."""
_REMARKS = 6
_WIDTH = 120
_NAME = 28
_STATE = 12


def format_title(acceptance: Acceptance) -> str:
    """Return the verdict in one line: what the machine came to, and the components that say so."""
    names = [row.component for row in acceptance.bad]
    few = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    said = acceptance.fitness.value + (f": {few}" if names else "")
    return f"{said} (partial: {acceptance.partial})" if acceptance.partial else said


def format_lines(acceptance: Acceptance) -> list[str]:
    """Return the verdict in at most MOST lines: the title, the components, remarks."""
    machine = [component.name for component in MACHINE]
    steps = [row for row in acceptance.rows if row.component not in (*machine, NUMBERS)]
    shown = [row for row in acceptance.rows if row.component in (*machine, NUMBERS) or row in acceptance.bad]
    told = [format_title(acceptance), ""]
    well = [row for row in steps if row.state is State.OK]
    rest = [row for row in steps if row.state is State.NOT_JUDGED]
    for row in shown:
        if row.component == NUMBERS:
            told += _format_steps(well, rest)
        told += _format_row(row)
    remarks = acceptance.remarks
    if remarks:
        told += ["", "remarks:", *(f"  {_cut(remark, _WIDTH - 2)}" for remark in remarks[:_REMARKS])]
    if len(remarks) > _REMARKS:
        told.append(f"  {len(remarks) - _REMARKS} more")
    return told if len(told) <= MOST else [*told[: MOST - 1], "(the page has the rest)"]


def _format_steps(well: Sequence[Row], rest: Sequence[Row]) -> list[str]:
    """Steps that are as they should be take one line, and those that nothing judged another."""
    told = []
    for rows, state in ((well, State.OK), (rest, State.NOT_JUDGED)):
        if rows:
            words = ", ".join(row.component for row in rows)
            told += _format_row(Row("steps", state, f"{len(rows)}: {words}"))
    return told


def _format_row(row: Row) -> list[str]:
    head = f"{row.component:{_NAME}}{row.state.value:{_STATE}}"
    room = _WIDTH - len(head)
    bad = row.state in (State.BROKEN, State.SLOW)
    what = textwrap.wrap(" ".join(row.what.split()), room) or [""]
    most = 3
    if len(what) > most:
        what = [*what[: most - 1], _cut(" ".join(what[most - 1 :]), room)]
    told = [head + what[0], *(" " * len(head) + line for line in what[1:])]
    if bad and row.because:
        first, *rest = textwrap.wrap(f"because: {' '.join(row.because.split())}", room)
        told += [" " * len(head) + line for line in (first, *([_cut(" ".join(rest), room)] if rest else []))]
    return told


def _cut(text: str, room: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= room else f"{line[: room - 3]}..."


def make_document(acceptance: Acceptance) -> Mapping[str, Any]:
    """Return the verdict as JSON types, as results and pages keep it."""
    return {
        "title": format_title(acceptance),
        "verdict": acceptance.fitness.value,
        "partial": acceptance.partial,
        "columns": ["component", "state", "what speaks for it"],
        "rows": [
            [row.component, row.state.value, row.what + (f" (because: {row.because})" if row.because else "")]
            for row in acceptance.rows
        ],
        "remarks": list(acceptance.remarks),
    }
