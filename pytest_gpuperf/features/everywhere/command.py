"""``python -m pytest_gpuperf everywhere``: runs a command on the nodes of a job, inside a Ray cluster of their own."""

from __future__ import annotations

import argparse

from pytest_gpuperf.command_options import Commands, parse_count, parse_positive_seconds


def add(commands: Commands) -> None:
    """Adds the command."""
    command = commands.add_parser(
        "everywhere",
        usage="%(prog)s [options] -- COMMAND ...",
        help="start Ray on all nodes of a job, and run a command on the first",
        description="Start this on every node of a job, with srun, mpirun, torchrun or as the command of its pods. It "
        "compares the nodes, starts Ray on them, runs COMMAND on the first, and ends everything. Every node exits with "
        "COMMAND's status, or with 69 if COMMAND could not run to its end. pytest gets the option --cluster.",
    )
    command.set_defaults(run=_run_everywhere, refuse=command.error)
    command.add_argument("--head", metavar="HOST", help="name or address of the first node (the launcher's)")
    command.add_argument("--nodes", type=parse_count, metavar="N", help="number of nodes (the launcher's)")
    command.add_argument("--rank", type=int, metavar="K", help="number of this node; 0 is the first (the launcher's)")
    command.add_argument(
        "--port",
        type=_parse_port,
        metavar="PORT",
        help="where the first node listens (one that the job's number gives)",
    )
    command.add_argument(
        "--wait",
        type=parse_positive_seconds,
        default=120.0,
        metavar="S",
        help="seconds in which all nodes must come (120)",
    )
    command.add_argument(
        "--lost-after",
        type=parse_positive_seconds,
        default=30.0,
        metavar="S",
        help="seconds of silence that make a node lost (30)",
    )
    command.add_argument(
        "--grace",
        type=parse_positive_seconds,
        default=10.0,
        metavar="S",
        help="seconds for COMMAND to end if cancelled (10)",
    )
    command.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command, after --")


def _run_everywhere(options: argparse.Namespace) -> int:
    """Returns the exit status of the command, or 69."""
    import asyncio
    import os
    from pathlib import Path

    from pytest_gpuperf.features.everywhere.facts import resolve
    from pytest_gpuperf.features.everywhere.head import lead
    from pytest_gpuperf.features.everywhere.launcher import LauncherError, find_place, is_here
    from pytest_gpuperf.features.everywhere.node import follow
    from pytest_gpuperf.features.everywhere.settings import Settings

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        options.refuse("no command is given: write it after --, for example `everywhere -- pytest tests --gpus auto`")
    try:
        place = find_place(os.environ, head=options.head, nodes=options.nodes, rank=options.rank)
    except LauncherError as error:
        options.refuse(str(error))
    settings = Settings(
        place=place,
        command=tuple(command),
        wait=options.wait,
        silence=options.lost_after,
        grace=options.grace,
        port=options.port,
        home=Path.home(),
    )
    first = place.first
    if first is None:
        first = any(is_here(address) for address in resolve(place.heads[0]))
    return asyncio.run((lead if first else follow)(settings, os.environ))


def _parse_port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"takes a port from 1 to 65535, got {text!r}")
    return int(text)
