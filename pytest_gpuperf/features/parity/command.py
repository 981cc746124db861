"""``python -m pytest_gpuperf parity`` and ``parity-compare``: layouts of a model, and recorded runs of a script."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_gpuperf.command_options import Commands, parse_count, parse_positive_seconds
from pytest_gpuperf.features.parity.layouts.asked import Layout, Subject, parse_layout
from pytest_gpuperf.report.command_error import CommandError

_TIMEOUT = 120.0
_NOT_JUDGED = 4
_PRECISIONS = ("bfloat16", "float16", "float32")


def add(commands: Commands) -> None:
    """Adds the commands."""
    parser = commands.add_parser(
        "parity",
        help="train a model in several layouts, each against one device; 0 if all are right, 1 if one is wrong, 4 if "
        "one was not judged",
    )
    parser.set_defaults(run=_run_parity, refuse=parser.error)
    parser.add_argument("build", metavar="MODULE:BUILD", help="a function that returns the model")
    parser.add_argument(
        "--batch", required=True, metavar="MODULE:BATCH", help="batch(step) returns (inputs, targets); step is from 1"
    )
    parser.add_argument(
        "--layouts",
        required=True,
        type=_parse_layouts,
        metavar="LIST",
        help="such as ddp2,fsdp2,tp2,cp2,fsdp2xtp2; the number of ranks follows each axis",
    )
    parser.add_argument("--steps", type=parse_count, default=2, metavar="N", help="of the optimizer (2)")
    parser.add_argument(
        "--loss",
        default="",
        metavar="MODULE:LOSS",
        help="loss(output, targets) returns a mean, or a sum and a count (cross-entropy for classes, else the squared "
        "error)",
    )
    parser.add_argument(
        "--optimizer", default="", metavar="MODULE:OPTIMIZER", help="optimizer(parameters) returns it (AdamW)"
    )
    parser.add_argument(
        "--plan",
        default="",
        metavar="MODULE:PLAN",
        help="plan(model) returns the plan of parallelize_module (derived from pairs of linear layers)",
    )
    parser.add_argument("--gpus", type=parse_count, default=0, metavar="N", help="run on N GPUs (gloo ranks on CPUs)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the weights (0)")
    parser.add_argument(
        "--timeout",
        type=parse_positive_seconds,
        default=_TIMEOUT,
        metavar="SECONDS",
        help=f"of each run ({_TIMEOUT:g})",
    )
    parser = commands.add_parser(
        "parity-compare",
        help="judge a run on ranks by a run on one device, both written by parity_record; 0 if it is right, 1 if it is "
        "wrong, 4 if it was not judged",
    )
    parser.set_defaults(run=_compare)
    parser.add_argument("reference", type=Path, metavar="REFERENCE", help="the file of the run on one device")
    parser.add_argument("file", type=Path, metavar="FILE", help="the file of the run on ranks")
    parser.add_argument(
        "--mesh", type=_parse_mesh, default={}, metavar="AXES", help="such as dp=2,tp=2; the last axis counts fastest"
    )
    parser.add_argument(
        "--layout",
        type=_parse_declaration,
        action="append",
        default=[],
        metavar="NAME=LAYOUT",
        help="how ranks hold a tensor, such as 'loss=partial(mean)', if shapes do not say it; may be given again",
    )
    parser.add_argument(
        "--microbatches", type=parse_count, default=1, metavar="N", help="into which a rank cuts its batch"
    )
    parser.add_argument(
        "--precision", choices=_PRECISIONS, help="what the program computes in, if no output of a module shows it"
    )


def _compare(options: argparse.Namespace) -> int:
    """Returns what the command exits with."""
    import torch

    from pytest_gpuperf.features.parity.judging_files import judge_files

    try:
        report, said = judge_files(
            options.reference,
            options.file,
            mesh=options.mesh,
            layouts=dict(options.layout),
            microbatches=options.microbatches,
            precision=getattr(torch, options.precision) if options.precision else None,
        )
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return _NOT_JUDGED
    print(f"{report}\n{said}")
    return 0 if report.ok else 1


def _run_parity(options: argparse.Namespace) -> int:
    """Returns what the command exits with."""
    from pytest_gpuperf.features.parity.layouts.running import try_layouts
    from pytest_gpuperf.features.parity.layouts.table import compute_status, format_table

    subject = Subject(
        options.build,
        options.batch,
        options.loss,
        options.optimizer,
        options.plan,
        str(Path.cwd()),
        options.steps,
        options.seed,
    )
    try:
        for role in ("build", "batch", "loss", "optimizer", "plan"):
            subject.function(role)
        rows = try_layouts(subject, options.layouts, options.gpus, options.timeout)
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return _NOT_JUDGED
    print("\n".join(format_table(rows)))
    return compute_status(rows)


def _parse_layouts(text: str) -> list[Layout]:
    try:
        return [parse_layout(one) for one in dict.fromkeys(text.split(","))]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_mesh(text: str) -> dict[str, int]:
    pairs = [one.partition("=") for one in text.split(",")]
    if not all(name and size.isdecimal() and int(size) for name, _, size in pairs):
        raise argparse.ArgumentTypeError(f"takes axes with their sizes, as in dp=2,tp=2, got {text!r}")
    return {name: int(size) for name, _, size in pairs}


def _parse_declaration(text: str) -> tuple[str, str]:
    name, _, layout = text.rpartition("=")
    if not name or not layout:
        raise argparse.ArgumentTypeError(f"takes a name and a layout, as in 'loss=partial(mean)', got {text!r}")
    return name, layout
