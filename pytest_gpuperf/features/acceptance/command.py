"""``python -m pytest_gpuperf accept``: its options."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.command_options import Commands, parse_seconds

SOAK = 30.0
QUICK_SOAK = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for."""

    gpus: int | None
    """None for all that are visible."""
    quick: bool
    soak: float | None
    """Seconds; None for what suits."""
    report: Path | None
    json: Path | None
    cluster: str | None = None
    """Address of a Ray cluster whose hosts are accepted; None for this machine."""


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser("accept", help="say whether this machine is fit; exit code 1 if it is not")
    parser.set_defaults(run=_accept)
    parser.add_argument(
        "--gpus", type=_parse_gpus, default=None, metavar="N", help="how many GPUs, or auto for all (auto)"
    )
    parser.add_argument("--quick", action="store_true", help="a first look, in a minute and a half")
    parser.add_argument(
        "--soak",
        type=parse_seconds,
        metavar="SECONDS",
        help=f"how long results are looked at for silent corruption ({SOAK:g}; {QUICK_SOAK:g} with --quick)",
    )
    parser.add_argument(
        "--cluster", metavar="ADDRESS|auto", help="compare the hosts of a Ray cluster instead, and name the slow ones"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page of HTML with the verdict on top")
    parser.add_argument("--gpuperf-json", type=Path, metavar="FILE", help="write verdict and results as JSON")


def _accept(options: argparse.Namespace) -> int:
    """Returns what the command exits with."""
    from pytest_gpuperf.features.acceptance.accepting import accept  # needs pytest, which the doctor's machine may lack

    return accept(
        Wanted(options.gpus, options.quick, options.soak, options.report, options.gpuperf_json, options.cluster)
    )


def _parse_gpus(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"takes a number of GPUs or 'auto', got {text!r}")
    return int(text)
