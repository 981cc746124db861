"""How a metric moved, as every report shows it: the change of the value itself, with what the value measures.

Verdicts store a change whose sign is good or bad. A reader sees a time, and expects that a longer time is ``+``.
"""

from __future__ import annotations

from pytest_gpuperf.figures.metric import Better
from pytest_gpuperf.report.units import choose_scale, format_percent
from pytest_gpuperf.verdicts.share import Share
from pytest_gpuperf.verdicts.verdict import Verdict

_QUANTITIES = {"s": "time", "x": "ratio", "fraction": "share", "B": "bytes"}
_SPEEDS = ("B/s", "FLOP/s", "token/s")


def format_change(change: float, better: Better, unit: str, value: float) -> str:
    """Return the change of a value: ``+47.0 % time``, if a step takes longer, or ``-13.0 % GB/s``.

    Args:
        change: As verdicts store it: above 0 is better.
        better: Which way the value is better.
        unit: Of the value.
        value: Which chooses the prefix of the unit.
    """
    quantity = _QUANTITIES.get(unit) or choose_scale(value, unit)[1]
    return f"{format_percent(_convert_change(change, better), signed=True)} {quantity}"


def change_in_words(change: float, better: Better, unit: str) -> str:
    """Return the same for a sentence: ``47.0 % slower``, or ``12.0 % higher`` of what is no speed."""
    moved = _convert_change(change, better)
    slower = (moved > 0) == (unit == "s")
    word = ("slower" if slower else "faster") if unit in ("s", *_SPEEDS) else "higher" if moved > 0 else "lower"
    return f"{format_percent(abs(moved))} {word}"


def format_share(share: Share, better: Better, unit: str, value: float, of: str = "") -> str:
    """Return one arm's part of a change with its interval; ``of`` follows the number of launches."""
    low, high = sorted(_convert_change(end, better) for end in share.interval)
    between = f"{format_percent(low, signed=True)} to {format_percent(high, signed=True)}{of}"
    return f"{format_change(share.change, better, unit, value)} ({between})"


def compute_stored_change(verdict: Verdict) -> float | None:
    """Return by how much a metric differs from its baseline, or from the other code if it has none."""
    return verdict.code.change if verdict.baseline is None and verdict.code is not None else verdict.change


def show_change(verdict: Verdict) -> str:
    """Return that change for a column; empty if there is none."""
    change, metric = compute_stored_change(verdict), verdict.metric
    return "" if change is None else format_change(change, metric.better, metric.unit, metric.value)


def _convert_change(change: float, better: Better) -> float:
    return change if better == "higher" else -change
