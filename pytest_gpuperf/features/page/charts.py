"""Sweeps, pairs and searches as a page draws them, in the units of their axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuperf.features.page.run import Run
from pytest_gpuperf.report.matrices import parse_matrix
from pytest_gpuperf.report.searches import COLUMNS, cells, format_headline
from pytest_gpuperf.report.units import choose_scale, format_bytes, format_count, format_value


@dataclass(frozen=True, slots=True)
class Curve:
    """A sweep's bandwidth over size."""

    id: str
    title: str
    summary: str
    dips: Sequence[str]
    rows: Sequence[tuple[str, str, str]]
    """Size, time and bandwidth, for whoever reads no chart."""
    drawing: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Square:
    """A figure for each ordered pair of ranks or hosts."""

    title: str
    summary: str
    cells: Sequence[Sequence[tuple[str, float, bool]]]
    """Rows of text, share of the best cell, and whether the pair is slow."""
    names: Sequence[str]
    """Names of the rows and columns."""


@dataclass(frozen=True, slots=True)
class Table:
    """The configurations of a search."""

    id: str
    title: str
    summary: str
    columns: Sequence[str]
    rows: Sequence[tuple[bool, Sequence[str]]]
    """For each configuration that ran, whether it is in the Pareto set, and its cells."""
    reasons: Sequence[tuple[str, str]]
    """Name and reason of each configuration that did not run."""
    drawing: Mapping[str, Any] | None
    """Memory against time; None if the memory is unknown."""


def draw_curve(number: int, run: Run, told: Mapping[str, Any]) -> Curve:
    """Return what a page draws of a sweep.

    Args:
        number: names it on the page.
        run: that measured it.
        told: the sweep, as in ``curves.make_curve``.
    """
    peak = max(told["bandwidths"])
    scale, symbol = choose_scale(peak, "B/s")
    rows = [
        (format_bytes(size), format_value(seconds, "s"), format_value(bandwidth, "B/s"))
        for size, seconds, bandwidth in zip(told["sizes"], told["seconds"], told["bandwidths"], strict=True)
    ]
    limit = next(
        (v.metric.limit for v in run.results.verdicts if v.test == told["test"] and v.metric_name == "peak"), None
    )
    drawing: dict[str, Any] = {
        "kind": "curve",
        "unit": symbol,
        "sizes": told["sizes"],
        "labels": [row[0] for row in rows],
        "bandwidths": [bandwidth / scale for bandwidth in told["bandwidths"]],
        "fit": [_fit_at(told, place, scale) for place in range(len(told["sizes"]))],
        "dips": [dip["size"] for dip in told["dips"]],
    }
    if limit is not None:
        drawing["limit"] = limit / scale
    latency = format_value(told["seconds"][0], "s")
    summary = (
        f"{latency} at {rows[0][0]}, peak {format_value(peak, 'B/s')}, half of it at {format_bytes(told['half_size'])}"
    )
    dips = [
        f"{format_value(dip['bandwidth'], 'B/s')} at {format_bytes(dip['size'])}: its neighbours promise "
        f"{format_value(dip['promised'], 'B/s')}"
        for dip in told["dips"]
    ]
    return Curve(f"c{number}", str(told["test"]), summary, dips, rows, drawing)


def _fit_at(told: Mapping[str, Any], place: int, scale: float) -> float | None:
    """The bandwidth that the fit alpha + size / beta gives at this place."""
    size, seconds, bandwidth = (told[name][place] for name in ("sizes", "seconds", "bandwidths"))
    for regime in told["regimes"]:
        if regime["first"] <= size <= regime["last"]:
            fitted = regime["alpha"] + (0.0 if regime["beta"] is None else size / regime["beta"])
            return float(bandwidth * seconds / fitted / scale) if fitted > 0 else None
    return None


def draw_square(told: Mapping[str, Any]) -> Square:
    """Return what a page draws of a figure for each pair, as in ``matrices.make_matrix``."""
    pairs, unit = parse_matrix(told), str(told["unit"])
    slow = {(cell.row, cell.column) for cell in pairs.slow}
    best = max(pairs.values) if pairs.better == "higher" else min(pairs.values)

    def share(value: float) -> float:
        return value / best if pairs.better == "higher" else best / value

    cells = [
        [
            ("", 0.0, False) if value is None else (format_value(value, unit), share(value), (number, column) in slow)
            for column, value in enumerate(row)
        ]
        for number, row in enumerate(pairs.rows)
    ]
    middle = format_value(pairs.median, unit)
    found = (
        f"{format_count(len(pairs.slow_pairs), 'pair')} slower by more than 10 %"
        if slow
        else "no pair is slower by more than 10 %"
    )
    names = [pairs.name(number) for number in range(len(cells))]
    return Square(f"{told['test']} {told['name']}", f"median {middle}, {found}", cells, names)


def draw_table(number: int, told: Mapping[str, Any]) -> Table:
    """Return what a page draws of a search.

    Args:
        number: names it on the page.
        told: the search, as in ``searches.make_table``.
    """
    ran = [row for row in told["trials"] if row["seconds"] is not None]
    columns = list(zip(*map(cells, ran), strict=True))
    kept = [place for place, column in enumerate(columns) if any(column)]
    return Table(
        f"s{number}",
        f"{told['test']} {told['name']}",
        format_headline(told),
        [COLUMNS[place] for place in kept],
        [(bool(row["frontier"]), [cells(row)[place] for place in kept]) for row in ran],
        [(str(row["name"]), str(row["reason"])) for row in told["trials"] if row["seconds"] is None],
        _make_frontier(ran),
    )


def _make_frontier(ran: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the chart of time against memory draws; None if a configuration's memory is unknown."""
    if any(row["peak_bytes"] is None for row in ran):
        return None
    time_scale, time_unit = choose_scale(max(row["seconds"] for row in ran), "s")
    scale, unit = choose_scale(max(row["peak_bytes"] for row in ran), "B")
    return {
        "kind": "frontier",
        "unit": time_unit,
        "memory_unit": unit,
        "trials": [
            [row["name"], row["peak_bytes"] / scale, row["seconds"] / time_scale, bool(row["frontier"])] for row in ran
        ],
    }
