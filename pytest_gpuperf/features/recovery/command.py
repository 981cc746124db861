"""``python -m pytest_gpuperf recover``: the results and the JUnit file of a killed run."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_gpuperf.command_options import Commands


def add(commands: Commands) -> None:
    """Adds the command."""
    command = commands.add_parser("recover", help="make the results of a killed run; 1 if the run was killed")
    command.set_defaults(run=_recover)
    command.add_argument("file", type=Path, metavar="RESULTS", help="the file that --gpuperf-json named")
    command.add_argument("--junitxml", type=Path, metavar="FILE", help="write the JUnit file of a killed run")


def _recover(options: argparse.Namespace) -> tuple[list[str], bool]:
    """Returns what it says, and whether the run had ended by itself."""
    from pytest_gpuperf.features.recovery.recovering import recover  # needs pytest, which the doctor's machine may lack

    return recover(options.file, options.junitxml)
