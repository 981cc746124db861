"""A quantity between each two ranks, or hosts, as a table: which pairs are slow. Knows no torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_gpuperf.figures.metric import Better, convert_to_finite

ODD = 0.1  # a cell that is worse than the median of all by more than this is named


@dataclass(frozen=True, slots=True)
class Cell:
    """One pair of ranks whose metric is worse than that of the others."""

    row: int
    column: int
    value: float
    """In the matrix's unit."""
    loss: float
    """As a fraction of the median."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Metrics of ordered pairs: from the row's rank, or host, to the column's.

    Raises:
        ValueError: the rows are not a square of positive numbers and None.
    """

    rows: tuple[tuple[float | None, ...], ...]
    """In unit; None if a pair has no metric, as on the diagonal."""
    unit: str
    """SI unit without prefix."""
    better: Better
    names: tuple[str, ...] = ()
    """Names of the rows and columns, such as hosts; empty: they are ranks by number."""

    def __post_init__(self) -> None:
        """Refuses what is no table of pairs."""
        if not self.rows or any(len(row) != len(self.rows) for row in self.rows):
            lengths = [len(row) for row in self.rows]
            raise ValueError(f"matrix has rows of {lengths} metrics, expected a square: pass a row for each rank")
        if self.names and len(self.names) != len(self.rows):
            raise ValueError(f"matrix has {len(self.rows)} rows and {len(self.names)} names, expected one for each row")
        for number, row in enumerate(self.rows):
            for value in row:
                if value is not None and ((figure := convert_to_finite(value)) is None or figure <= 0):
                    raise ValueError(f"matrix row {number} holds {value!r}, expected numbers above 0, or None for none")
        if not self.values:
            raise ValueError("matrix holds None alone, expected a metric of at least one pair")

    @classmethod
    def of(cls, rows: Iterable[Sequence[float | None]], unit: str, better: Better, names: Sequence[str] = ()) -> Matrix:
        """The matrix of any sequences of rows."""
        return cls(tuple(tuple(row) for row in rows), unit, better, tuple(names))

    def name(self, number: int) -> str:
        """The name of a row or column."""
        return self.names[number] if self.names else str(number)

    @property
    def values(self) -> list[float]:
        """All metrics, row by row."""
        return [value for row in self.rows for value in row if value is not None]

    @property
    def median(self) -> float:
        """The median of all metrics."""
        return statistics.median(self.values)

    @property
    def slow(self) -> list[Cell]:
        """The pairs that are worse than the median by more than a tenth, the worst first."""
        middle = self.median
        cells = []
        for number, row in enumerate(self.rows):
            for column, value in enumerate(row):
                if value is None:
                    continue
                loss = 1 - value / middle if self.better == "higher" else value / middle - 1
                if loss > ODD:
                    cells.append(Cell(number, column, value, loss))
        return sorted(cells, key=lambda cell: -cell.loss)

    @property
    def slow_pairs(self) -> list[Cell]:
        """The slow cells; a pair that has one metric for both directions is there once."""
        return [cell for cell in self.slow if cell.row < cell.column or self.rows[cell.column][cell.row] != cell.value]
