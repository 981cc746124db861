"""``python -m pytest_gpuperf adopt FILE…``: results of earlier runs become baselines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf.baselines import provenance
from pytest_gpuperf.baselines.adopt import adopt
from pytest_gpuperf.baselines.merge import RELATIVE_BOUND, Mode, UpdatePolicy
from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.baselines.schema import BaselineError
from pytest_gpuperf.baselines.storage import storage_at
from pytest_gpuperf.report.one_line import one_line
from pytest_gpuperf.report.recording_lines import unfit_lines, update_lines
from pytest_gpuperf.report.units import format_count

LINE_CHARACTERS = 1000  # names in a line come from files: nobody reads more, and a terminal may hang on megabytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 if all that was asked for was done, 1 if not, 2 if it could not be meant."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.reason.strip():
        parser.error("--reason is empty: say why these results become baselines")
    if not 0 < options.tolerance < float("inf"):
        parser.error(f"--tolerance must be a positive number, got {options.tolerance}")
    policy = UpdatePolicy(Mode(options.mode), options.accept_regression, options.tolerance)
    try:
        adopted = adopt(
            options.files, storage_at(options.baselines), policy, provenance.stamp(Path.cwd(), options.reason)
        )
    except BaselineError as error:
        print(one_line(f"error: {error}"), file=sys.stderr)
        return 1
    for line in [
        *unfit_lines({cut(test): why for test, why in adopted.unfit.items()}),
        *update_lines(adopted.merged, lambda test: "the same command and --accept-regression"),
    ]:
        print(one_line(cut(line, LINE_CHARACTERS)))
    written = len(adopted.merged.written)
    told = f"baselines of {format_count(written, 'test')} written to {adopted.where}"
    print(one_line(told) if written else "no baselines written")
    return 1 if adopted.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pytest_gpuperf", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="adopt")
    command = commands.add_parser("adopt", help="merge results of --gpuperf-json into the baselines of their hardware")
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results of runs on one hardware")
    command.add_argument("--reason", required=True, metavar="TEXT", help="why, kept in the file")
    command.add_argument(
        "--baselines", type=Path, default=Path("baselines"), metavar="DIR", help="folder of the baselines (baselines)"
    )
    command.add_argument(
        "--mode",
        choices=[mode.value for mode in Mode],
        default=Mode.MOVED.value,
        help="as of pytest's --update-baselines",
    )
    command.add_argument("--accept-regression", action="store_true", help="write centres that are worse, too")
    command.add_argument(
        "--tolerance",
        type=float,
        default=RELATIVE_BOUND,
        metavar="X",
        help=f"relative loss that is no regression ({RELATIVE_BOUND})",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
