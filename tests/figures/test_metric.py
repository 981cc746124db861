"""One measured figure."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.figures.metric import Metric

BANDWIDTH = Metric(356e9, "B/s", "higher", 355e9, 357e9, 50, 450e9, "cuda_event", "NVLink")
TIME = Metric(1e-3, "s", "lower")
HOT = replace(
    TIME, invalid=(Tripped("GPU-1", Gate.POWER_BRAKE), Tripped("GPU-2", Gate.SLOW_CLOCK, 345e6, 1.98e9, "Hz"))
)


@pytest.mark.parametrize("name", ["value", "q1", "q3", "limit"])
@pytest.mark.parametrize("figure", [float("nan"), float("inf"), 0.0, -1.0, True, "1", 10**400])
def test_a_figure_without_a_ratio_is_refused_by_name(name: str, figure: Any) -> None:
    fields = {"value": 1.0, "unit": "s", "better": "lower", name: figure}
    with pytest.raises(ValueError, match=rf"metric {name} is '?{figure}'?, expected a finite number above 0: check"):
        Metric(**fields)


def test_numbers_of_other_libraries_are_numbers() -> None:
    metric = Metric(np.float32(3.0), "s", "lower", q1=Fraction(5, 2), q3=np.int64(4))  # type: ignore[arg-type]
    assert metric == Metric(3.0, "s", "lower", q1=2.5, q3=4.0)
    assert {type(figure) for figure in (metric.value, metric.q1, metric.q3)} == {float}
    with pytest.raises(
        ValueError, match="metric value is nan, expected a finite number above 0: check the measurement"
    ):
        Metric(np.float32("nan"), "s", "lower")  # type: ignore[arg-type]


def test_a_tensor_is_no_number() -> None:
    message = r"metric value is tensor\(3\.\), expected a finite number above 0: this is a Tensor, pass its \.item\(\)"
    with pytest.raises(ValueError, match=message):
        Metric(torch.tensor(3.0), "s", "lower")  # type: ignore[arg-type]


def test_a_figure_has_to_be_there() -> None:
    nothing: Any = None
    with pytest.raises(ValueError, match="metric value is None, expected a finite number above 0"):
        Metric(nothing, "s", "lower")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q1": 2.0, "q3": 1.0}, r"metric quartiles are q1=2\.0 and q3=1\.0, expected q1 <= q3: swap them"),
        (
            {"interval": (1.2, 1.1)},
            r"metric interval is \(1\.2, 1\.1\), expected two finite numbers above 0, the lower",
        ),
        ({"interval": (float("nan"), 2.0)}, r"metric interval is \(nan, 2\.0\), expected two finite numbers above 0"),
        ({"interval": (0.0, 2.0)}, r"metric interval is \(0\.0, 2\.0\), expected two finite numbers above 0"),
        ({"unit": ""}, r"metric unit is '', expected an SI unit: pass for example 'B/s' or 's'"),
        ({"better": "faster"}, r"metric better is 'faster', expected one of 'higher', 'lower': pass one"),
        ({"samples": 0}, r"metric samples is 0, expected an integer of at least 1: count the samples"),
    ],
)
def test_a_figure_says_what_it_is(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TIME, **fields)


@pytest.mark.parametrize(
    ("metric", "above"),
    [
        (replace(BANDWIDTH, value=450e9), False),
        (replace(BANDWIDTH, value=458e9), False),
        (replace(BANDWIDTH, value=460e9), True),
        (replace(BANDWIDTH, value=460e9, limit=None), False),
        (replace(TIME, limit=1e-3), False),
        (replace(TIME, value=0.985e-3, limit=1e-3), False),
        (replace(TIME, value=0.975e-3, limit=1e-3), True),
    ],
)
def test_above_the_limit_is_beyond_its_tolerance_in_the_better_direction(metric: Metric, above: bool) -> None:
    assert metric.above_limit is above
