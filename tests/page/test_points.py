"""The picture of old and new launches: further right is better."""

import pytest

from pytest_gpuperf.features.page.points import WIDTH, make_points


@pytest.mark.parametrize(("better", "expected"), [("higher", ([8, 110], [212])), ("lower", ([212, 110], [8]))])
def test_further_right_is_better(better: str, expected: tuple[list[int], list[int]]) -> None:
    drawn = make_points([1.0, 2.0], [3.0], "s", better)
    assert drawn is not None
    assert (drawn.old, drawn.new) == expected
    assert drawn.text == "Old: 1.500 s in 2 launches, 1.000 s to 2.000 s. New: 3.000 s."


def test_equal_launches_are_in_the_middle() -> None:
    drawn = make_points([2.0], [2.0], "s", "lower")
    assert drawn is not None
    assert [*drawn.old, *drawn.new] == [WIDTH / 2, WIDTH / 2]


def test_values_of_any_size_have_a_place() -> None:
    drawn = make_points([1e-300, 1e300], [1e300], "s", "higher")
    assert drawn is not None
    assert (drawn.old, drawn.new) == ([8, 212], [212])


@pytest.mark.parametrize(("old", "new"), [([], [1.0]), ([1.0], [])])
def test_without_launches_of_both_sides_there_is_no_picture(old: list[float], new: list[float]) -> None:
    assert make_points(old, new, "s", "lower") is None


def test_the_newest_launches_are_drawn() -> None:
    drawn = make_points([100.0, *[1.0] * 40], [2.0], "s", "higher")
    assert drawn is not None
    assert set(drawn.old) == {8}
