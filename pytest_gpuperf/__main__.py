"""``python -m pytest_gpuperf``: commands about files of results, about the machine, and the suites.

The commands here are about records and results. Each feature that has a module ``command`` adds one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf.baselines import provenance
from pytest_gpuperf.baselines.adopt import adopt
from pytest_gpuperf.baselines.compare import compare
from pytest_gpuperf.baselines.merge import MINIMUM_SLOWDOWN, UpdatePolicy
from pytest_gpuperf.baselines.mode import Mode
from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.baselines.rename import RenameError, rename
from pytest_gpuperf.baselines.schema import BaselineError
from pytest_gpuperf.baselines.storage import make_storage
from pytest_gpuperf.command_options import add_folder
from pytest_gpuperf.features import iterate_modules
from pytest_gpuperf.report.command_error import CommandError
from pytest_gpuperf.report.comparison_lines import format_comparison
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.report.recording_lines import describe_renaming, describe_unfit, update_lines
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.suites_command import run_suites

LINE_CHARACTERS = 1000  # names in a line come from files: nobody reads more, and a terminal may hang on megabytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 if all that was asked for was done, 1 if not, 2 if it could not be meant."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["suites"] and not {"-h", "--help"} & set(given):
        return run_suites(given[1:])  # all that follows is pytest's
    options = _make_parser().parse_args(given)
    try:
        ended: int | tuple[list[str], bool] = options.run(options)
    except (BaselineError, RenameError, CommandError) as error:
        print(make_one_line(f"error: {error}"), file=sys.stderr)
        return 1
    if isinstance(ended, int):
        return ended
    lines, done = ended
    for line in lines:
        print(make_one_line(cut(line, LINE_CHARACTERS)))
    return 0 if done else 1


def _adopt(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it says, and whether all was done."""
    if not options.reason.strip():
        options.refuse("--reason is empty: say why these results become baselines")
    if not 0 < options.minimum_slowdown < float("inf"):
        options.refuse(f"--minimum-slowdown must be a positive number, got {options.minimum_slowdown}")
    policy = UpdatePolicy(Mode(options.mode), options.accept_regression, options.minimum_slowdown)
    stamp = provenance.stamp(Path.cwd(), options.reason)
    adopted = adopt(options.files, make_storage(options.baselines), policy, stamp)
    written = len(adopted.merged.written)
    told = f"baselines of {format_count(written, 'test')} written to {adopted.where}"
    lines = [
        *describe_unfit({cut(test): why for test, why in adopted.unfit.items()}),
        *update_lines(adopted.merged, lambda test: "the same command and --accept-regression"),
        told if written else "no baselines written",
    ]
    return lines, not adopted.failed


def _compare(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it says; it is always done."""
    compared = compare(options.first, options.second)
    return format_comparison(compared, str(options.first), str(options.second)), True


def _rename(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it says; it is done, or refused."""
    stamp = provenance.stamp(Path.cwd(), f"renamed from {options.old}")
    return describe_renaming(rename(make_storage(options.baselines), options.old, options.new, stamp)), True


def _make_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands, those of features behind the others."""
    parser = argparse.ArgumentParser(prog="python -m pytest_gpuperf", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, title="commands")
    commands.add_parser(
        "suites",
        usage="%(prog)s [options of pytest]",
        help="run the suites; takes all options of pytest",
        description="Run the suites that the package brings. Everything behind 'suites' goes to pytest, for example "
        "--gpus 8 -m perf. Baselines are in ./baselines, unless --baselines DIR names another folder.",
    )
    command = commands.add_parser("adopt", help="merge results of --gpuperf-json into the baselines of their hardware")
    command.set_defaults(run=_adopt, refuse=command.error)
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results of runs on one hardware")
    command.add_argument("--reason", required=True, metavar="TEXT", help="why, kept in the file")
    add_folder(command)
    command.add_argument(
        "--mode",
        choices=[mode.value for mode in Mode],
        default=Mode.MOVED.value,
        help="as of pytest's --update-baselines",
    )
    command.add_argument("--accept-regression", action="store_true", help="write centres that are worse, too")
    command.add_argument(
        "--minimum-slowdown",
        type=float,
        default=MINIMUM_SLOWDOWN,
        metavar="X",
        help=f"relative slowdown up to which a centre is as good as the stored one ({MINIMUM_SLOWDOWN})",
    )
    command = commands.add_parser("compare", help="show the metrics of two files of one hardware side by side")
    command.set_defaults(run=_compare)
    command.add_argument("first", type=Path, metavar="A.json", help="baselines, or results of --gpuperf-json")
    command.add_argument("second", type=Path, metavar="B.json", help="what is held against it")
    command = commands.add_parser("rename", help="give baselines the new name of their tests")
    command.set_defaults(run=_rename)
    command.add_argument("old", metavar="OLD", help="node id of a test, function, class or file")
    command.add_argument("new", metavar="NEW", help="what it is called now")
    add_folder(command)
    for _, feature in iterate_modules("command"):
        feature.add(commands)
    commands.metavar = " | ".join(sorted(commands.choices))
    return parser


if __name__ == "__main__":
    sys.exit(main())
