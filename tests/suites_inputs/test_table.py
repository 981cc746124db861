"""Each class of inputs has a test in each suite, a reason why it has none, or a gap that is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.suites_inputs.table import FILE, ROOT, Input, complaints, lines, read

SUITES = ROOT / "suites"
ONE = Input("ties", {"a": "test_x.py::test_y"}, {"b": "nothing is chosen"}, ["c"])


def test_the_table_names_tests_that_are_there() -> None:
    assert not list(complaints(read(ROOT / FILE), SUITES))


def test_a_suite_is_in_one_place_and_its_test_exists(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "test_x.py").write_text("def test_y() -> None: ...\n", encoding="utf-8")
    assert not list(complaints([ONE], tmp_path))
    assert list(complaints([replace(ONE, gaps=["b", "c"])], tmp_path)) == [
        f"{FILE}, ties: b stands in 2 of tests, none and gaps: put it in one of them"
    ]
    assert list(complaints([ONE, replace(ONE, name="padding", none={})], tmp_path)) == [
        f"{FILE}, padding: b stands in 0 of tests, none and gaps: put it in one of them"
    ]
    for test in ("test_x.py::test_z", "test_z.py::test_y"):
        assert list(complaints([replace(ONE, tests={"a": test})], tmp_path)) == [
            f"{FILE}, ties: a has no {test}: name the test that has such inputs, or list a gap"
        ]


def test_the_table_shows_gaps() -> None:
    assert lines([ONE]) == ["1: ties", "", "     1", "a  yes", "b    -", "c  GAP", "", "no test of ties: c"]
