"""A launch whose figures moved all alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.verdicts.shift import compute_shift


def launch(*losses: float) -> dict[str, list[float]]:
    """As many tests, with one figure each."""
    return {f"test_{number}": [loss] for number, loss in enumerate(losses)}


@pytest.mark.parametrize(
    ("losses", "shift"),
    [
        ([0.02] * 10, 0.02),
        ([-0.02] * 10, -0.02),
        ([0.0148] * 50, None),
        ([0.0149] * 50, 0.0149),
        ([0.02] * 9, None),
        ([0.3] * 5 + [0.0] * 5, None),  # as many regressions as not are no shift
        ([-0.3] * 5 + [0.0] * 5, None),
        ([0.3] * 6 + [0.0] * 4, 0.3),
        ([0.02] * 7 + [-0.5] * 4, 0.02),
        ([], None),
    ],
)
def test_most_figures_lost_or_gained(losses: list[float], shift: float | None) -> None:
    assert compute_shift(launch(*losses)) == (None if shift is None else pytest.approx(shift))


@given(st.lists(st.floats(-0.5, 0.5), min_size=10, max_size=20))
def test_a_shift_is_symmetric(losses: list[float]) -> None:
    shift = compute_shift(launch(*losses))
    assert compute_shift(launch(*[-loss for loss in losses])) == (None if shift is None else pytest.approx(-shift))


def test_the_many_figures_of_one_test_are_not_the_whole_run() -> None:
    assert compute_shift({"test_many": [0.2] * 10, **launch(0.0, 0.0)}) is None
    assert compute_shift({"test_many": [0.2] * 10, **launch(0.2, 0.0)}) == pytest.approx(0.2)
