"""How a figure moved reads the same everywhere."""

import pytest

from pytest_gpuperf.figures.metric import Better
from pytest_gpuperf.report.change import change_in_words, format_change, format_share
from pytest_gpuperf.verdicts.share import Share


@pytest.mark.parametrize(
    ("change", "better", "unit", "value", "column", "words"),
    [
        (-0.47, "lower", "s", 2e-3, "+47.0 % time", "47.0 % slower"),
        (0.2, "lower", "s", 2e-3, "-20.0 % time", "20.0 % faster"),
        (-0.13, "higher", "B/s", 298e9, "-13.0 % GB/s", "13.0 % slower"),
        (0.13, "higher", "FLOP/s", 7e14, "+13.0 % TFLOP/s", "13.0 % faster"),
        (-0.5, "lower", "x", 1.5, "+50.0 % ratio", "50.0 % higher"),
        (-0.5, "higher", "x", 1.5, "-50.0 % ratio", "50.0 % lower"),
        (0.1, "higher", "fraction", 0.4, "+10.0 % share", "10.0 % higher"),
        (-0.1, "lower", "B", 2**30, "+10.0 % bytes", "10.0 % higher"),
        (-0.1, "lower", "W", 700.0, "+10.0 % W", "10.0 % higher"),
        (-0.1, "higher", "widgets", 3.0, "-10.0 % widgets", "10.0 % lower"),
    ],
)
def test_a_change_is_that_of_the_value(
    change: float, better: Better, unit: str, value: float, column: str, words: str
) -> None:
    assert format_change(change, better, unit, value) == column
    assert change_in_words(change, better, unit) == words


def test_an_interval_has_the_smaller_end_first() -> None:
    share = Share(-0.05, (-0.06, -0.04), 4)
    assert format_share(share, "lower", "s", 1e-3) == "+5.0 % time (+4.0 % to +6.0 %)"
    assert format_share(share, "higher", "B/s", 1e9, " in 4 launches") == "-5.0 % GB/s (-6.0 % to -4.0 % in 4 launches)"
