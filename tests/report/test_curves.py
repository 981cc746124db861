"""Curves of sweeps in results, and the lines that name their dips."""

import json

from pytest_gpuperf.report.curves import describe_dips, make_curve
from pytest_gpuperf.report.table import Line
from tests.figures.test_sweep import swept

MIB = 2**20
SEEN = swept([1e-6, 9e-6, 4e-6, 8e-6], [MIB, 2 * MIB, 4 * MIB, 8 * MIB])
FLAT = swept([5e-6] * 4, [MIB, 2 * MIB, 4 * MIB, 8 * MIB])


def test_a_rate_without_end_is_null_for_json_has_no_infinity() -> None:
    (regime,) = make_curve("t.py::test_a", FLAT)["regimes"]
    assert regime["beta"] is None
    json.dumps(regime, allow_nan=False)


def test_each_dip_has_a_line() -> None:
    assert describe_dips([make_curve("t.py::test_a", SEEN), make_curve("t.py::test_b", FLAT)]) == [
        Line(
            "dip: t.py::test_a: 233.0 GB/s at 2 MiB, where its neighbours promise 1.049 TB/s, 4.5 times as much",
            "yellow",
        )
    ]
