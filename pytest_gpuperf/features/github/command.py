"""``python -m pytest_gpuperf comment``: the metrics of a run in a comment of its pull request."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_gpuperf.command_options import Commands


def add(commands: Commands) -> None:
    """Adds the command."""
    command = commands.add_parser("comment", help="write the metrics of results into one comment of a pull request")
    command.set_defaults(run=_write_comment, refuse=command.error)
    command.add_argument("file", type=Path, metavar="RESULTS", help="results of --gpuperf-json")
    command.add_argument("--pull-request", type=int, required=True, metavar="NUMBER", help="which one")


def _write_comment(options: argparse.Namespace) -> tuple[list[str], bool]:
    """Returns what it says; it is done, or refused."""
    from pytest_gpuperf.features.github.pull_request import (  # needs pytest, which the doctor's machine may lack
        PullRequest,
        make_comment,
    )

    names = ("GITHUB_API_URL", "GITHUB_REPOSITORY", "GITHUB_TOKEN")
    if missing := [name for name in names if not os.environ.get(name)]:
        options.refuse(f"{', '.join(missing)} not set: a workflow of GitHub sets the first two, and its env the token")
    api, repository, token = (os.environ[name] for name in names)
    key, text = make_comment(options.file)
    return [PullRequest(api, repository, options.pull_request, token).comment(key, text)], True
