"""The table of verdicts."""

from collections import Counter
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.report.table import (
    Line,
    describe_expectations,
    describe_unchecked,
    format_verdict_table,
    shorten,
    skip_lines,
)
from pytest_gpuperf.verdicts.outcome import Outcome
from tests.report.examples import KEY, SAME, UNJUDGED

TEST = "suites/collectives/test_performance.py::test_bus_bandwidth[4ranks-reduce_scatter-16MiB]"
REGRESSED = replace(SAME, outcome=Outcome.REGRESSED, change=-0.1)


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_no_verdict_is_no_table() -> None:
    assert format_verdict_table([]) == []


def test_a_row_says_everything_of_a_verdict() -> None:
    assert texts(format_verdict_table([SAME, UNJUDGED])) == [
        "verdict   value       baseline    change       spread  of limit  metric",
        "same      354.0 GB/s  356.0 GB/s  -0.5 % GB/s  2.4 %   78.7 %    t.py::test_a busbw",
        "unjudged  27.00 us                                               t.py::test_b time",
        f"2 metrics on {KEY}: 1 same, 1 unjudged",
    ]


def test_a_column_that_holds_nothing_is_left_out() -> None:
    assert texts(format_verdict_table([UNJUDGED]))[:2] == [
        "verdict   value     metric",
        "unjudged  27.00 us  t.py::test_b time",
    ]


def test_the_worst_stands_first_and_looks_it() -> None:
    verdicts = [replace(SAME, outcome=outcome) for outcome in Outcome]
    assert [(line.text.split()[0], line.colour) for line in format_verdict_table(verdicts)[1:-1]] == [
        ("invalid", "red"),
        ("regressed", "red"),
        ("missed", "red"),
        ("missing", "red"),
        ("environment", "yellow"),
        ("undecided", "yellow"),
        ("expected", "yellow"),
        ("improved", "green"),
        ("same", ""),
        ("recorded", ""),
        ("unjudged", ""),
    ]


def test_of_one_outcome_the_largest_loss_stands_first() -> None:
    losses = [replace(SAME, outcome=Outcome.REGRESSED, change=change) for change in (-0.1, -0.3, -0.2)]
    table = texts(format_verdict_table([SAME, *losses]))
    assert [line.split("  ")[3].strip() for line in table[1:4]] == ["-30.0 % GB/s", "-20.0 % GB/s", "-10.0 % GB/s"]


def test_expectations_are_told_where_they_hold_and_where_nothing_needs_them() -> None:
    known = replace(SAME, expected=KnownRegression("a slow driver", date(2027, 1, 31)))
    idle = 'no longer regressed: t.py::test_a busbw: delete its entry under "expected" in the baselines'
    told = {
        Outcome.EXPECTED: ["expected until 2027-01-31: t.py::test_a busbw: a slow driver"],
        Outcome.SAME: [idle],
        Outcome.IMPROVED: [idle],
    }
    for outcome in Outcome:
        assert texts(describe_expectations([UNJUDGED, replace(known, outcome=outcome)])) == told.get(outcome, [])


def test_figures_are_counted_worst_first_and_by_machine() -> None:
    verdicts = [SAME, SAME, replace(SAME, outcome=Outcome.REGRESSED), replace(SAME, hardware_key="cpu")]
    assert format_verdict_table(verdicts)[-1].text == f"4 metrics on {KEY}, cpu: 1 regressed, 3 same"


@pytest.mark.parametrize(
    ("width", "ending"),
    [
        (200, f"  {TEST} busbw"),
        (120, "  suites/collectives/tes...-reduce_scatter-16MiB] busbw"),
        (40, "  suit...6MiB] busbw"),  # the numbers are whole, and the line is longer
    ],
)
def test_on_a_terminal_the_tests_id_is_shortened_and_never_a_number(width: int, ending: str) -> None:
    line = format_verdict_table([replace(REGRESSED, test=TEST)], width=width)[1].text
    assert line.startswith("regressed  354.0 GB/s  356.0 GB/s  -10.0 % GB/s  2.4 %   78.7 %  ")
    assert line.endswith(ending)
    assert len(line) <= max(width, 65 + 12 + 8)


@given(st.text(), st.integers(5, 50))
def test_a_shortened_text_fits_and_keeps_both_ends(text: str, room: int) -> None:
    short = shorten(text, room)
    assert len(short) <= room
    assert (short == text) == (len(text) <= room)
    if short != text:
        head, tail = (room - 3) // 2, (room - 3) - (room - 3) // 2
        assert short == text[:head] + "..." + text[-tail:]


def test_tests_that_ran_nowhere_are_listed_by_reason() -> None:
    skips = Counter({("no GPUs", "t.py::test_b"): 3, ("no GPUs", "t.py::test_a"): 1, ("needs 8", "t.py::test_a"): 1})
    assert texts(skip_lines(skips)) == [
        "1 test did not run: needs 8",
        "  t.py::test_a",
        "4 tests did not run: no GPUs",
        "  t.py::test_a",
        "  t.py::test_b (3)",
    ]
    assert skip_lines(Counter()) == []


def test_many_tests_of_one_reason_are_counted_unless_the_user_wants_to_see_them() -> None:
    skips = Counter({("no GPUs", f"t.py::test_{number}"): 2 for number in range(4)} | {("needs 8", "t.py::test_a"): 1})
    assert texts(skip_lines(skips, fold=True)) == [
        "1 test did not run: needs 8",
        "  t.py::test_a",
        "8 tests did not run: no GPUs (-v lists them)",
    ]
    assert len(skip_lines(skips)) == 7


def test_figures_that_were_not_checked_are_told_in_one_line() -> None:
    assert describe_unchecked([]) == []
    assert texts(describe_unchecked([("a", "x")])) == ["1 metric with a baseline was not checked: a x"]
    two = [("a", "x"), ("b", "y")]
    assert describe_unchecked(two) == [Line("2 metrics with a baseline were not checked: a x, b y", "yellow")]
