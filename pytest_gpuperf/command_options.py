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


def parse_count(text: str) -> int:
    """Parses a number of 1 or more.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"takes a number of 1 or more, got {text!r}")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parses seconds, 0 or more.

    Raises:
        argparse.ArgumentTypeError: the text is something else.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"takes seconds, 0 or more, got {text!r}")
    return value


def parse_positive_seconds(text: str) -> float:
    """Parses seconds, more than 0.

    Raises:
        argparse.ArgumentTypeError: the text is something else.
    """
    value = parse_seconds(text)
    if not value:
        raise argparse.ArgumentTypeError(f"takes seconds, more than 0, got {text!r}")
    return value
