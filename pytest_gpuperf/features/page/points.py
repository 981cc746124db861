"""The picture of a figure that moved: its old and its new launches as points on a line."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.report.units import format_value

WIDTH, HEIGHT = 220, 20
_MARGIN = 8
_MOST = 40
"""Launches of a side that are drawn; the newest ones."""


@dataclass(frozen=True, slots=True)
class Points:
    """Launches by their values; further right is better."""

    old: Sequence[int]
    """Where the launches of the baseline, or of the old code, are."""
    new: Sequence[int]
    """Where the launches of this run are."""
    text: str
    """The picture in words."""


def make_points(old: Sequence[float], new: Sequence[float], unit: str, better: str) -> Points | None:
    """Return the picture; None if a side has no launch.

    Args:
        old: values of the old launches, in the order of time.
        new: values of the new launches.
        unit: of all values.
        better: ``higher`` or ``lower``.
    """
    old, new = old[-_MOST:], new[-_MOST:]
    if not old or not new:
        return None
    low, high = min(*old, *new), max(*old, *new)

    def place(value: float) -> int:
        share = (value / high - low / high) / (1 - low / high) if high > low else 0.5
        return round(_MARGIN + (WIDTH - 2 * _MARGIN) * (share if better == "higher" else 1 - share))

    text = f"Old: {_describe_launches(old, unit)}. New: {_describe_launches(new, unit)}."
    return Points([place(value) for value in old], [place(value) for value in new], text)


def _describe_launches(values: Sequence[float], unit: str) -> str:
    middle = format_value(statistics.median(values), unit)
    if len(values) == 1:
        return middle
    return f"{middle} in {len(values)} launches, {format_value(min(values), unit)} to {format_value(max(values), unit)}"
