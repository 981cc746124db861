"""A figure for each pair of ranks."""

from typing import Any

import pytest

from pytest_gpuperf.figures.matrix import Cell, Matrix

ROWS = ((None, 386e9, 387e9), (385e9, None, 232e9), (386e9, 388e9, None))


def test_slow_pairs_are_named_the_worst_first() -> None:
    assert Matrix(ROWS, "B/s", "higher").slow == [Cell(1, 2, 232e9, 1 - 232e9 / 386e9)]
    latencies = Matrix.of([[None, 1.0, 1.0], [2.0, None, 1.0], [1.0, 3.0, None]], "s", "lower")
    assert [(cell.row, cell.column, cell.loss) for cell in latencies.slow] == [(2, 1, 2.0), (1, 0, 1.0)]
    assert Matrix.of([[None, 1.0], [1.05, None]], "s", "lower").slow == []


def test_hosts_have_names_and_ranks_numbers() -> None:
    rows = [[None, 1.0], [1.0, None]]
    assert [Matrix.of(rows, "s", "lower", ["gpu-a", "gpu-b"]).name(place) for place in range(2)] == ["gpu-a", "gpu-b"]
    assert Matrix.of(rows, "s", "lower").name(1) == "1"
    with pytest.raises(ValueError, match=r"^matrix has 2 rows and 1 names, expected one for each row$"):
        Matrix.of(rows, "s", "lower", ["gpu-a"])


def test_a_pair_that_has_one_figure_for_both_ways_is_named_once() -> None:
    both = Matrix.of([[None, 1.0, 2.0], [1.0, None, 1.0], [2.0, 1.0, None]], "s", "lower")
    assert [(cell.row, cell.column) for cell in both.slow] == [(0, 2), (2, 0)]
    assert [(cell.row, cell.column) for cell in both.slow_pairs] == [(0, 2)]
    ways = Matrix.of([[None, 1.0, 2.0], [1.0, None, 1.0], [2.1, 1.0, None]], "s", "lower")
    assert [(cell.row, cell.column) for cell in ways.slow_pairs] == [(2, 0), (0, 2)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"matrix has rows of \[\] metrics, expected a square: pass a row for each rank"),
        ([[1.0, 2.0]], r"matrix has rows of \[2\] metrics, expected a square"),
        ([[None, -1.0], [1.0, None]], "matrix row 0 holds -1.0, expected numbers above 0, or None for none"),
        ([[None, "1"], [1.0, None]], "matrix row 0 holds '1', expected numbers above 0"),
        ([[None]], "matrix holds None alone, expected a metric of at least one pair"),
    ],
)
def test_what_is_no_table_of_pairs_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Matrix.of(rows, "s", "lower")
