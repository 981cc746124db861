"""Matrices of pairs of ranks or hosts: what a results file has of them, and their slow pairs in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpuperf.baselines.plain import make_plain
from pytest_gpuperf.figures.matrix import Matrix
from pytest_gpuperf.report.forms import MatrixForm
from pytest_gpuperf.report.shown import Shown
from pytest_gpuperf.report.table import Line
from pytest_gpuperf.report.units import choose_scale, format_count, format_percent, format_value

_SMALL = 8  # ranks whose pairs fit a line of 80 columns
_NAMED = 4  # pairs; a GPU whose every link is slow fills the rest of a line


def make_matrix(test: str, name: str, one: Matrix) -> dict[str, Any]:
    """Return what a results file has of a matrix that a test shows under this name."""
    return {"test": test, "name": name, **make_plain(one)}


def parse_matrix(carried_one: Mapping[str, Any]) -> Matrix:
    """Return the matrix that travelled as a mapping.

    Raises:
        ValueError: it is no matrix.
    """
    return Matrix.of(
        carried_one["rows"], carried_one["unit"], carried_one["better"], carried_one.get("names", ())
    )  # results of earlier versions have no names


def format_matrices(matrices: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return small matrices as tables, the slow pairs marked; a larger one is its slow pairs alone."""
    lines = []
    for one in matrices:
        table = parse_matrix(one)
        if len(table.rows) > _SMALL:
            continue
        scale, symbol = choose_scale(table.median, table.unit)
        slow = {(cell.row, cell.column) for cell in table.slow}
        places = range(len(table.rows))
        what = "host" if table.names else "rank"
        wide = max(5, *(len(table.name(place)) for place in places))
        widths = [max(9, len(table.name(place)) + 2) for place in places]
        lines.append(Line(f"{one['test']} {one['name']}, {symbol} from {what} (row) to {what} (column), * is slow:"))
        lines.append(Line(" " * wide + "".join(f"{table.name(place):>{widths[place]}}" for place in places)))
        for number, row in enumerate(table.rows):
            cells = [
                "-" if value is None else f"{value / scale:.4g}{'*' if (number, column) in slow else ''}"
                for column, value in enumerate(row)
            ]
            told = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            lines.append(Line(f"{table.name(number):>{wide}}" + told))
    return lines


def describe_slow_pairs(matrices: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return a line for each matrix that has slow pairs."""
    lines = []
    for one in matrices:
        table = parse_matrix(one)
        slow = table.slow_pairs
        if not slow:
            continue
        unit = table.unit
        pairs = ", ".join(
            f"{table.name(cell.row)} to {table.name(cell.column)} at {format_value(cell.value, unit)}, "
            f"{format_percent(cell.loss)} worse"
            for cell in slow[:_NAMED]
        )
        more = f" and {format_count(len(slow) - _NAMED, 'pair')} more" if len(slow) > _NAMED else ""
        middle = format_value(table.median, unit)
        lines.append(Line(f"slow pairs: {one['test']} {one['name']}: {pairs}{more}; the median is {middle}", "yellow"))
    return lines


MATRICES = Shown("matrices", MatrixForm, lambda matrices: [*format_matrices(matrices), *describe_slow_pairs(matrices)])
"""The matrices of pairs; ``make_matrix`` makes one."""
