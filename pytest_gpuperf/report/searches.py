"""Tables of configurations: what a results file has of them, and their lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpuperf.figures.search import DoesNotFit, Search, Trial
from pytest_gpuperf.report.forms import SearchForm
from pytest_gpuperf.report.shown import Shown
from pytest_gpuperf.report.table import Line
from pytest_gpuperf.report.units import format_bytes, format_count, format_percent, format_value

COLUMNS = ("configuration", "time", "tokens", "MFU", "memory", "host memory")
_FRONTIER = "*"


def make_table(test: str, search: Search) -> dict[str, Any]:
    """Return what a results file has of a search, in SI units: the trials that ran, fastest first, then the others."""
    others = [trial for trial in search.trials if trial.timing is None]
    return {
        "test": test,
        "name": search.name,
        "world_size": search.ran[0].timing.world_size if search.ran[0].timing is not None else 0,
        "trials": [_make_row(search, trial) for trial in (*search.ran, *others)],
    }


def format_headline(table: Mapping[str, Any]) -> str:
    """Return which configuration is the fastest, by how much, and how many did not run, in words."""
    ran = [row for row in table["trials"] if row["seconds"] is not None]
    left = len(table["trials"]) - len(ran)
    text = f"{ran[0]['name']} is the fastest of {format_count(len(ran), 'configuration')}"
    if len(ran) > 1:
        gain = ran[1]["seconds"] / ran[0]["seconds"] - 1
        text += f", {format_percent(gain)} ahead of {ran[1]['name']}"
    return f"{text}; {left} did not run" if left else text


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a row has in each column; a column that is unknown is empty."""
    return (
        row["name"],
        "" if row["seconds"] is None else format_value(row["seconds"], "s"),
        "" if row["rate"] is None else format_value(row["rate"], "token/s"),
        "" if row["mfu"] is None else format_percent(row["mfu"]),
        "" if row["peak_bytes"] is None else format_bytes(row["peak_bytes"]),
        "" if not row["host_bytes"] else format_bytes(row["host_bytes"]),
    )


def describe_searches(tables: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return each search as a table, the fastest configuration first, the Pareto set of time and memory marked."""
    lines = []
    for table in tables:
        rows = table["trials"]
        ran = [row for row in rows if row["seconds"] is not None]
        traded = any(row["peak_bytes"] is not None for row in ran)
        note = f"; {_FRONTIER} needs less memory than all that are faster" if traded else ""
        lines.append(Line(f"{table['test']} {table['name']}: {format_headline(table)}{note}"))
        columns = list(zip(COLUMNS, *map(cells, ran), strict=True))
        columns[0] = (COLUMNS[0], *(f"{_FRONTIER if traded and row['frontier'] else ' '} {row['name']}" for row in ran))
        padded = [_pad(column, left=index == 0) for index, column in enumerate(columns) if any(column[1:])]
        lines += [Line("  " + "  ".join(cells).rstrip()) for cells in zip(*padded, strict=True)]
        lines += [Line(f"    {row['name']}: {row['reason']}", "yellow") for row in rows if row["seconds"] is None]
    return lines


def _pad(column: Sequence[str], *, left: bool) -> list[str]:
    width = max(map(len, column))
    return [cell.ljust(width) if left else cell.rjust(width) for cell in column]


def _make_row(search: Search, trial: Trial) -> dict[str, Any]:
    rate = None if search.tokens is None or trial.seconds is None else search.tokens / trial.seconds
    return {
        "name": trial.name,
        "seconds": trial.seconds,
        "quartiles": None if trial.timing is None else list(trial.timing.quartiles),
        "rate": rate,
        "mfu": search.mfu(trial),
        "peak_bytes": trial.peak,
        "host_bytes": trial.host_peak,
        "frontier": any(one is trial for one in search.frontier),
        "reason": _describe_reason(trial),
    }


def _describe_reason(trial: Trial) -> str:
    why_not = trial.why_not
    if isinstance(why_not, DoesNotFit):
        least = "" if why_not.exact else "at least "
        return f"does not fit: needs {least}{format_bytes(why_not.needs)}, {format_bytes(why_not.there)} are there"
    return "" if why_not is None else str(why_not)


SEARCHES = Shown("searches", SearchForm, describe_searches)
"""Tables of configurations; ``make_table`` makes one."""
