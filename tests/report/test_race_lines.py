"""What a run says while it launches more."""

from pytest_gpuperf.features.racing.lines import (
    describe_block,
    describe_clearing,
    describe_no_race,
    describe_same_code,
    describe_second_launch,
)


def test_a_launch_against_the_record() -> None:
    assert describe_clearing(1, 3, ["t.py::a", "t.py::b"], 12.4) == (
        "worse than expected, launch 1 of at most 3 against the baseline (about 12 s): t.py::a, t.py::b"
    )


def test_a_launch_of_what_cannot_race() -> None:
    assert describe_no_race(4, 26, ["t.py::a"], 3.0) == (
        "no race, launch 4 of at most 26 against the baseline (about 3 s): t.py::a"
    )


def test_a_block_of_a_race() -> None:
    assert describe_block(2, 7, "abc1234", ["t.py::a"], 0.2) == (
        "race against abc1234, block 2 of at most 7 (4 launches, about 1 s): t.py::a"
    )


def test_a_launch_of_code_that_did_not_change() -> None:
    assert describe_same_code(2, 4, "abc1234", ["t.py::a"], 3.0) == (
        "timing the code of the baseline (abc1234), launch 2 of 4 (about 3 s): t.py::a"
    )


def test_a_second_launch_of_a_run_that_moved() -> None:
    assert (
        describe_second_launch(1)
        == "the whole run moved alike: a second launch of 1 test tells whether it does so again"
    )
    assert describe_second_launch(12).startswith("the whole run moved alike: a second launch of 12 tests")
