"""The verdict in words fits a terminal, whatever it has to say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_gpuperf.features.acceptance.components import MACHINE, NUMBERS
from pytest_gpuperf.features.acceptance.lines import MOST, format_lines, format_title, make_document
from pytest_gpuperf.features.acceptance.verdict import Acceptance, Row, State

LONG = "all_reduce[2ranks-bfloat16-64MiB] busbw 1.000 GB/s, usually 360.0 GB/s;\n  " * 12
WELL = [Row(component.name, State.OK, "1 metric: your record") for component in MACHINE]
NUMBERS_OK = Row(NUMBERS, State.OK, "3 tests passed")


def crowd(state: State, count: int = 25) -> list[Row]:
    return [Row(f"a step of a long name {number}", state, LONG, f"because of {LONG}") for number in range(count)]


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("remarks", [0, 1, 6, 7, 30])
def test_a_verdict_has_40_lines_of_120_characters_at_most(state: State, remarks: int) -> None:
    rows = [*(replace(row, state=state, what=LONG, because=LONG) for row in WELL), *crowd(state), NUMBERS_OK]
    told = format_lines(Acceptance(rows, [LONG] * remarks, "interrupted in speed"))
    assert len(told) <= MOST == 40
    assert max(map(len, told)) <= 120
    assert not any("\n" in line for line in told)


def test_what_does_not_fit_is_on_the_page() -> None:
    told = format_lines(Acceptance(crowd(State.BROKEN), [LONG] * 30))
    assert told[-1] == "(the page has the rest)"
    assert "(the page has the rest)" not in format_lines(Acceptance([*WELL, NUMBERS_OK]))


def test_a_word_that_is_longer_than_a_line_is_broken() -> None:
    told = format_lines(Acceptance([Row("host", State.SLOW, "x" * 1000, "y" * 1000)], ["z" * 1000]))
    assert max(map(len, told)) == 120


def test_the_title_comes_first_and_names_four_components_at_most() -> None:
    rows = [replace(row, state=State.SLOW) for row in WELL]
    expected = "unfit: matrix units, power, clocks, GPU memory, host, PCIe and 3 more"
    assert format_title(Acceptance(rows)) == expected
    assert format_lines(Acceptance(rows))[:2] == [expected, ""]
    assert format_title(Acceptance(rows[:1])) == "unfit: matrix units, power, clocks"
    assert format_title(Acceptance(WELL)) == "fit"
    assert format_title(Acceptance(rows[:1], partial="interrupted in speed")) == (
        "unfit: matrix units, power, clocks (partial: interrupted in speed)"
    )


def test_the_parts_of_the_machine_have_a_line_each_and_steps_that_are_well_one_together() -> None:
    steps = [Row("llm step", State.OK, "a"), Row("overlap", State.OK, "b"), Row("megatron", State.NOT_JUDGED, "c")]
    slow = Row("serving", State.SLOW, "pages 1.000 GB/s")
    assert format_lines(Acceptance([*WELL[:2], *steps, slow, NUMBERS_OK])) == [
        "unfit: serving",
        "",
        "matrix units, power, clocks ok          1 metric: your record",
        "GPU memory                  ok          1 metric: your record",
        "serving                     slow        pages 1.000 GB/s",
        "steps                       ok          2: llm step, overlap",
        "steps                       not judged  1: megatron",
        "numbers                     ok          3 tests passed",
    ]


def test_a_row_takes_three_lines_at_most_and_its_cause_two_more() -> None:
    told = format_lines(Acceptance([Row("host", State.SLOW, LONG, f"because of {LONG}")]))
    assert len(told) == 2 + 3 + 2
    assert told[4].endswith("...")
    assert told[6].endswith("...")
    assert told[5].startswith(f"{' ' * 40}because: because of all_reduce")


def test_a_component_that_is_well_has_no_cause() -> None:
    assert not any("because" in line for line in format_lines(Acceptance([Row("host", State.OK, "x", "y")])))


def test_six_remarks_are_printed_and_the_others_counted() -> None:
    told = format_lines(Acceptance(WELL, [f"remark {number}" for number in range(8)]))
    assert told[-9:] == ["", "remarks:", *(f"  remark {number}" for number in range(6)), "  2 more"]
    assert "remarks:" not in format_lines(Acceptance(WELL))


def test_the_document_is_json_with_all_rows_and_remarks() -> None:
    rows = [*WELL[:1], Row("host", State.SLOW, "few cores", "2 cores"), *crowd(State.OK), NUMBERS_OK]
    acceptance = Acceptance(rows, (LONG, *map(str, range(9))), "interrupted in speed")
    told = make_document(acceptance)
    assert json.loads(json.dumps(told)) == told
    assert told["title"] == "unfit: host (partial: interrupted in speed)"
    assert (told["verdict"], told["partial"]) == ("unfit", "interrupted in speed")
    assert len(told["columns"]) == 3
    assert [len(row) for row in told["rows"]] == [3] * len(rows)
    assert told["rows"][1] == ["host", "slow", "few cores (because: 2 cores)"]
    assert told["remarks"] == [LONG, *map(str, range(9))]
