"""What the commands of ``python -m pytest_gpuperf`` share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where a command is added. Its default ``run`` takes the parsed options and returns the lines that it prints with
whether all was done, or what the command exits with."""


def add_folder(command: argparse.ArgumentParser) -> None:
    """Adds the option that names the folder of the baselines."""
    command.add_argument(
        "--baselines", type=Path, default=Path("baselines"), metavar="DIR", help="folder of the baselines (baselines)"
    )
