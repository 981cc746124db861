"""``python -m pytest_gpuperf``: commands about files of results, about the machine, and the suites.

``adopt FILE…`` makes baselines of results, ``compare A B`` shows two files side by side, ``rename OLD NEW`` gives
baselines the new name of their tests, and ``report FILE…`` writes a page of results. ``recover FILE`` makes the
results and the JUnit file of a killed run, and ``comment FILE`` writes its figures into a comment of a pull request.
``doctor`` looks at this machine, and ``fleet FILE…`` compares many hosts. ``suites`` runs the suites, and ``accept``
runs them and says in one verdict whether the machine is fit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuperf.baselines import provenance
from pytest_gpuperf.baselines.adopt import adopt
from pytest_gpuperf.baselines.compare import compare
from pytest_gpuperf.baselines.merge import RELATIVE_BOUND, UpdatePolicy
from pytest_gpuperf.baselines.mode import Mode
from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.baselines.rename import RenameError, rename
from pytest_gpuperf.baselines.schema import BaselineError
from pytest_gpuperf.baselines.storage import storage_at
from pytest_gpuperf.doctor import facts_file
from pytest_gpuperf.doctor.diagnosis import blocks, diagnose
from pytest_gpuperf.doctor.gather import gather
from pytest_gpuperf.doctor.lines import document, report, suggestions
from pytest_gpuperf.doctor.suggest import suggest
from pytest_gpuperf.fleet import outliers, results_of_hosts
from pytest_gpuperf.hardware.machine import installed_devices
from pytest_gpuperf.report.command_error import CommandError
from pytest_gpuperf.report.comparison_lines import comparison_lines
from pytest_gpuperf.report.fleet_lines import fleet_lines
from pytest_gpuperf.report.one_line import one_line
from pytest_gpuperf.report.openmetrics import openmetrics
from pytest_gpuperf.report.recording_lines import renamed_lines, unfit_lines, update_lines
from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.suites_command import run_suites

LINE_CHARACTERS = 1000  # names in a line come from files: nobody reads more, and a terminal may hang on megabytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 if all that was asked for was done, 1 if not, 2 if it could not be meant."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["suites"] and not {"-h", "--help"} & set(given):
        return run_suites(given[1:])  # all that follows is pytest's
    options = _parser(accepts=given[:1] == ["accept"]).parse_args(given)
    if given[:1] == ["accept"]:
        from pytest_gpuperf.acceptance.command import accept, wanted_of  # needs pytest, which the doctor's may lack

        return accept(wanted_of(options))
    try:
        lines, done = options.run(options)
    except (BaselineError, RenameError, CommandError) as error:
        print(one_line(f"error: {error}"), file=sys.stderr)
        return 1
    for line in lines:
        print(one_line(cut(line, LINE_CHARACTERS)))
    return 0 if done else 1


def _adopt(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it says, and whether all was done."""
    if not options.reason.strip():
        options.refuse("--reason is empty: say why these results become baselines")
    if not 0 < options.tolerance < float("inf"):
        options.refuse(f"--tolerance must be a positive number, got {options.tolerance}")
    policy = UpdatePolicy(Mode(options.mode), options.accept_regression, options.tolerance)
    stamp = provenance.stamp(Path.cwd(), options.reason)
    adopted = adopt(options.files, storage_at(options.baselines), policy, stamp)
    written = len(adopted.merged.written)
    told = f"baselines of {format_count(written, 'test')} written to {adopted.where}"
    lines = [
        *unfit_lines({cut(test): why for test, why in adopted.unfit.items()}),
        *update_lines(adopted.merged, lambda test: "the same command and --accept-regression"),
        told if written else "no baselines written",
    ]
    return lines, not adopted.failed


def _compare(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it says; it is always done."""
    compared = compare(options.first, options.second)
    return comparison_lines(compared, str(options.first), str(options.second)), True


def _rename(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it says; it is done, or refused."""
    stamp = provenance.stamp(Path.cwd(), f"renamed from {options.old}")
    return renamed_lines(rename(storage_at(options.baselines), options.old, options.new, stamp)), True


def _report(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it says; it is done, or refused."""
    from pytest_gpuperf.page.page_file import page_of_files  # needs pytest, which the doctor's machine may lack

    return page_of_files(options.output, options.files, options.baselines), True


def _recover(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it says, and whether the run had ended by itself."""
    from pytest_gpuperf.report.recovery import recover  # as above

    return recover(options.file, options.junitxml)


def _comment(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it says; it is done, or refused."""
    from pytest_gpuperf.report.pull_request import PullRequest, comment_of  # as above

    names = ("GITHUB_API_URL", "GITHUB_REPOSITORY", "GITHUB_TOKEN")
    if missing := [name for name in names if not os.environ.get(name)]:
        options.refuse(f"{', '.join(missing)} not set: a workflow of GitHub sets the first two, and its env the token")
    api, repository, token = (os.environ[name] for name in names)
    key, text = comment_of(options.file)
    return [PullRequest(api, repository, options.pull_request, token).comment(key, text)], True


def _doctor(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it found; done means that nothing blocks multi-GPU work."""
    facts = gather(installed_devices(), counts=True) if options.facts is None else facts_file.load(options.facts)
    findings = diagnose(facts)
    settings = suggest(facts) if options.suggest else None
    if options.json:
        print(json.dumps(document(facts, findings, settings), indent=1))  # whole: a line may be long
        return [], not blocks(findings)
    if settings is not None:
        return suggestions(facts, settings), True
    return report(facts, findings), not blocks(findings)


def _fleet(options: argparse.Namespace) -> tuple[list[str], bool]:
    """What it found; done means that no host is slow."""
    fleet = results_of_hosts.load(options.files)
    compared = outliers.compare(fleet.figures)
    if not compared:
        raise CommandError(
            f"no figure could be compared: got {format_count(len(fleet.figures), 'figure')} of "
            f"{format_count(len(fleet.hosts), 'host')}, expected a figure that {outliers.LEAST_HOSTS} hosts or more "
            "measured: name the results of more hosts, of runs of the same tests"
        )
    lines = fleet_lines(fleet, compared)
    if options.openmetrics is not None:
        try:
            options.openmetrics.write_text(openmetrics(fleet, compared))
        except OSError as error:
            options.refuse(f"--openmetrics: cannot write {str(options.openmetrics)!r}: {error.strerror}")
        lines.append(f"OpenMetrics text written to {options.openmetrics}")
    return lines, not any(one.slow for one in compared)


def _parser(*, accepts: bool) -> argparse.ArgumentParser:
    """Return the parser; the options of ``accept`` are there only if it is meant, as they need pytest."""
    parser = argparse.ArgumentParser(prog="python -m pytest_gpuperf", allow_abbrev=False)
    names = "accept | adopt | compare | rename | report | recover | comment | doctor | fleet | suites"
    commands = parser.add_subparsers(required=True, metavar=names)
    command = commands.add_parser("accept", help="say whether this machine is fit; exit code 1 if it is not")
    if accepts:
        from pytest_gpuperf.acceptance.command import add_accept

        add_accept(command)
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
    _add_folder(command)
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
    command = commands.add_parser("compare", help="show the figures of two files of one hardware side by side")
    command.set_defaults(run=_compare)
    command.add_argument("first", type=Path, metavar="A.json", help="baselines, or results of --gpuperf-json")
    command.add_argument("second", type=Path, metavar="B.json", help="what is held against it")
    command = commands.add_parser("report", help="write a page of HTML from results of --gpuperf-json")
    command.set_defaults(run=_report)
    command.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="results of runs, of one hardware or of several"
    )
    command.add_argument(
        "--output", "-o", type=Path, default=Path("gpuperf.html"), metavar="FILE", help="the page (gpuperf.html)"
    )
    _add_folder(command)
    command = commands.add_parser("rename", help="give baselines the new name of their tests")
    command.set_defaults(run=_rename)
    command.add_argument("old", metavar="OLD", help="node id of a test, function, class or file")
    command.add_argument("new", metavar="NEW", help="what it is called now")
    _add_folder(command)
    command = commands.add_parser("recover", help="make the results of a killed run; 1 if the run was killed")
    command.set_defaults(run=_recover)
    command.add_argument("file", type=Path, metavar="RESULTS", help="the file that --gpuperf-json named")
    command.add_argument("--junitxml", type=Path, metavar="FILE", help="write the JUnit file of a killed run")
    command = commands.add_parser("comment", help="write the figures of results into one comment of a pull request")
    command.set_defaults(run=_comment, refuse=command.error)
    command.add_argument("file", type=Path, metavar="RESULTS", help="results of --gpuperf-json")
    command.add_argument("--pull-request", type=int, required=True, metavar="NUMBER", help="which one")
    command = commands.add_parser("doctor", help="look for what is wrong with this machine; exit code 1 if it blocks")
    command.set_defaults(run=_doctor)
    command.add_argument("--json", action="store_true", help="print facts and findings as JSON")
    command.add_argument("--suggest", action="store_true", help="print NCCL settings for this hardware, with reasons")
    command.add_argument("--facts", type=Path, metavar="FILE", help="diagnose what --json printed on another machine")
    command = commands.add_parser("fleet", help="compare the results of many hosts; exit code 1 if one is slow")
    command.set_defaults(run=_fleet, refuse=command.error)
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results of --gpuperf-json, of each host")
    command.add_argument("--openmetrics", type=Path, metavar="FILE", help="write all figures as OpenMetrics text")
    return parser


def _add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--baselines", type=Path, default=Path("baselines"), metavar="DIR", help="folder of the baselines (baselines)"
    )


if __name__ == "__main__":
    sys.exit(main())
