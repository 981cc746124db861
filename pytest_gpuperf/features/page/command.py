"""``python -m pytest_gpuperf report``: a page of HTML from files of results."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_gpuperf.command_options import Commands, add_folder


def add(commands: Commands) -> None:
    """Adds the command."""
    command = commands.add_parser("report", help="write a page of HTML from results of --gpuperf-json")
    command.set_defaults(run=_report)
    command.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="results of runs, of one hardware or of several"
    )
    command.add_argument(
        "--output", "-o", type=Path, default=Path("gpuperf.html"), metavar="FILE", help="the page (gpuperf.html)"
    )
    add_folder(command)


def _report(options: argparse.Namespace) -> tuple[list[str], bool]:
    """Returns what it says; it is done, or refused."""
    from pytest_gpuperf.features.page.page_file import (
        page_of_files,  # needs pytest, which the doctor's machine may lack
    )

    return page_of_files(options.output, options.files, options.baselines), True
