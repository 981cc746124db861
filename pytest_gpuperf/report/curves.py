"""Curves of sweeps: how they travel with a test's report, what a results file says of them, and their dips in words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from pytest_gpuperf.figures.sweep import Sweep
from pytest_gpuperf.report.table import Line
from pytest_gpuperf.report.units import format_bytes, format_value

CURVES_PROPERTY = "gpuperf_curves"
"""Name of the report's user property that carries the curves of a test's sweeps as JSON."""


def curve(test: str, sweep: Sweep) -> dict[str, Any]:
    """What a results file says of a sweep: SI units, by size, for who plots it."""
    return {
        "test": test,
        "op": sweep.op,
        "world_size": sweep.timings[0].world_size,
        "sizes": list(sweep.sizes),
        "seconds": list(sweep.seconds),
        "quartiles": [list(timing.quartiles) for timing in sweep.timings],
        "bandwidths": list(sweep.bandwidths),
        "half_size": sweep.half_size,
        "regimes": [
            {
                "first": regime.first,
                "last": regime.last,
                "alpha": regime.alpha,
                "beta": None if math.isinf(regime.beta) else regime.beta,
                "residual": regime.residual,
            }
            for regime in sweep.regimes
        ],
        "dips": [{"size": dip.nbytes, "bandwidth": dip.bandwidth, "promised": dip.promised} for dip in sweep.dips],
    }


def curve_properties(test: str, sweeps: Iterable[Sweep]) -> list[tuple[str, str]]:
    """The user properties of a test that made these sweeps."""
    told = [curve(test, sweep) for sweep in sweeps]
    return [(CURVES_PROPERTY, json.dumps(told))] if told else []


def curves_of(report: pytest.TestReport) -> list[Mapping[str, Any]]:
    """The curves that a report carries."""
    carried = [value for name, value in report.user_properties if name == CURVES_PROPERTY]
    return [told for value in carried for told in json.loads(str(value))]


def dip_lines(curves: Sequence[Mapping[str, Any]]) -> list[Line]:
    """A line for each dip of these curves."""
    return [
        Line(
            f"dip: {told['test']}: {format_value(dip['bandwidth'], 'B/s')} at {format_bytes(dip['size'])}, where its "
            f"neighbours promise {format_value(dip['promised'], 'B/s')}, "
            f"{dip['promised'] / dip['bandwidth']:.1f} times as much",
            "yellow",
        )
        for told in curves
        for dip in told["dips"]
    ]
