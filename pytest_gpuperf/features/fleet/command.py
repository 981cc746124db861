"""``python -m pytest_gpuperf fleet``: the results of many hosts side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_gpuperf.command_options import Commands


def add(commands: Commands) -> None:
    """Adds the command."""
    command = commands.add_parser("fleet", help="compare the results of many hosts; exit code 1 if one is slow")
    command.set_defaults(run=_compare_fleet, refuse=command.error)
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results of --gpuperf-json, of each host")
    command.add_argument("--openmetrics", type=Path, metavar="FILE", help="write all metrics as OpenMetrics text")


def _compare_fleet(options: argparse.Namespace) -> tuple[list[str], bool]:
    """Returns what it found; done means that no host is slow."""
    from pytest_gpuperf.features.fleet import outliers, results_of_hosts
    from pytest_gpuperf.features.fleet.lines import format_fleet
    from pytest_gpuperf.features.fleet.openmetrics import format_openmetrics
    from pytest_gpuperf.report.command_error import CommandError
    from pytest_gpuperf.report.units import format_count

    fleet = results_of_hosts.load(options.files)
    compared = outliers.compare(fleet.figures)
    if not compared:
        raise CommandError(
            f"no metric could be compared: got {format_count(len(fleet.figures), 'metric')} of "
            f"{format_count(len(fleet.hosts), 'host')}, expected a metric that {outliers.LEAST_HOSTS} hosts or more "
            "measured: name the results of more hosts, of runs of the same tests"
        )
    lines = format_fleet(fleet, compared)
    if options.openmetrics is not None:
        try:
            options.openmetrics.write_text(format_openmetrics(fleet, compared))
        except OSError as error:
            options.refuse(f"--openmetrics: cannot write {str(options.openmetrics)!r}: {error.strerror}")
        lines.append(f"OpenMetrics text written to {options.openmetrics}")
    return lines, not any(one.slow for one in compared)
