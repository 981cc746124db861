"""Curves of sweeps: what a results file says of them, and their dips in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpuperf.figures.sweep import Sweep
from pytest_gpuperf.report.forms import CurveForm
from pytest_gpuperf.report.shown import Shown
from pytest_gpuperf.report.table import Line
from pytest_gpuperf.report.units import format_bytes, format_count, format_value

_MARKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII_MARKS = "_.-=+*#@"


def make_curve(test: str, sweep: Sweep) -> dict[str, Any]:
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


def describe_curve(told: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """Return a sweep as a small picture of its bandwidths, with its latency, its half-peak size and its dips."""
    dips = f", {format_count(len(told['dips']), 'dip')}" if told["dips"] else ""
    return (
        f"{draw_sparkline(told['bandwidths'], ascii_only=ascii_only)} {format_value(told['seconds'][0], 's')} to "
        f"{format_value(max(told['bandwidths']), 'B/s')}, half at {format_bytes(told['half_size'])}{dips}"
    )


def draw_sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """Return a character for each value, by its logarithm between the smallest and the largest of them."""
    marks = _ASCII_MARKS if ascii_only else _MARKS
    logs = [math.log(value) for value in values]
    low, span = min(logs), max(logs) - min(logs)
    return "".join(marks[round((log - low) / span * (len(marks) - 1)) if span else -1] for log in logs)


def describe_dips(curves: Sequence[Mapping[str, Any]]) -> list[Line]:
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


CURVES = Shown("curves", CurveForm, describe_dips)
"""The curves of sweeps; ``make_curve`` makes one."""
