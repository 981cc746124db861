"""Text that a file brings is a part of its line, whatever is in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.report.one_line import make_one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("driver 580 halves small messages; see #12, 5 µs -> 10 µs", None),
        ("first\r\n::error::second", "first ::error::second"),
        ("\x1b[31mred\x1b[0m", " [31mred [0m"),
        ("\x9b2J\x07\x7f.", " 2J ."),
        ("a\u2028b\u2029c\x85d\x0be", "a b c d e"),
        ("\u202etxet\u2066.", " txet ."),
        ("\ud800", " "),
        ("x ##[error]y ###[group]", "x ## [error]y ### [group]"),
    ],
)
def test_what_is_no_part_of_a_line_is_a_space(text: str, line: str | None) -> None:
    assert make_one_line(text) == (text if line is None else line)


@given(st.text(st.characters(), max_size=20))
def test_it_is_one_line_that_can_be_written(text: str) -> None:
    line = make_one_line(text)
    assert len(line.splitlines()) <= 1
    assert "##[" not in line
    assert "\x1b" not in line
    line.encode()
    assert make_one_line(line) == line
