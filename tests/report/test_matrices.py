"""Matrices in the terminal."""

from pytest_gpuperf.figures.matrix import Matrix
from pytest_gpuperf.report.matrices import describe_slow_pairs, format_matrices, make_matrix, parse_matrix
from tests.page.examples import MATRIX


def test_a_matrix_is_the_same_once_it_was_shown() -> None:
    assert make_matrix(MATRIX["test"], "pairs", parse_matrix(MATRIX)) == {**MATRIX, "names": []}


def test_a_small_matrix_is_a_table_that_marks_slow_pairs() -> None:
    assert [line.text for line in format_matrices([MATRIX])] == [
        f"{MATRIX['test']} pairs, GB/s from rank (row) to rank (column), * is slow:",
        "             0        1        2",
        "    0        -      386      387",
        "    1      385        -     232*",
        "    2      386      388        -",
    ]
    large = Matrix.of([[None if row == column else 1.0 for column in range(9)] for row in range(9)], "s", "lower")
    assert format_matrices([make_matrix("t", "m", large)]) == []


def test_a_matrix_of_hosts_has_their_names() -> None:
    rows = [[None, 40e9, 40e9], [40e9, None, 20e9], [40e9, 20e9, None]]
    hosts = Matrix.of(rows, "B/s", "higher", ["gpu-a", "gpu-b", "10.144.12.107"])
    carried = [make_matrix("t", "hosts", hosts)]
    assert parse_matrix(carried[0]) == hosts
    assert [line.text for line in format_matrices(carried)] == [
        "t hosts, GB/s from host (row) to host (column), * is slow:",
        "                 gpu-a    gpu-b  10.144.12.107",
        "        gpu-a        -       40             40",
        "        gpu-b       40        -            20*",
        "10.144.12.107       40      20*              -",
    ]
    assert [line.text for line in describe_slow_pairs(carried)] == [
        "slow pairs: t hosts: gpu-b to 10.144.12.107 at 20.00 GB/s, 50.0 % worse; the median is 40.00 GB/s"
    ]


def test_slow_pairs_are_named() -> None:
    (line,) = describe_slow_pairs([MATRIX])
    assert line.text == (
        f"slow pairs: {MATRIX['test']} pairs: 1 to 2 at 232.0 GB/s, 39.9 % worse; the median is 386.0 GB/s"
    )
    rows = [[None if row == column else (2.0 if row == 0 else 1.0) for column in range(8)] for row in range(8)]
    carried = [make_matrix("t", "m", Matrix.of(rows, "s", "lower"))]
    assert "and 3 pairs more" in describe_slow_pairs(carried)[0].text
    even = Matrix.of([[None, 1.0], [1.0, None]], "s", "lower")
    assert describe_slow_pairs([make_matrix("t", "m", even)]) == []
