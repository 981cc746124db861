"""Real git repositories with perf tests, whose figures tell which code they are of."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pytest_gpuperf.features.racing.arms.blueprint import NEUTRAL, Blueprint

AUTHOR = {f"GIT_{who}_{what}": "someone@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
CONFTEST = """
import pytest
from tests import fake_gpus
from pytest_gpuperf.run.current_ranks import CurrentRanks
patch = pytest.MonkeyPatch()
fake_gpus.install(patch, visible=2)
patch.setattr(CurrentRanks, "_read_software", lambda self, size: {"torch": "2.13.0"})  # to load it takes seconds
"""
RANKLESS = f"""{CONFTEST}
fake_gpus.without_ranks(patch)
patch.setattr(CurrentRanks, "run", lambda self, size, entry, args, kwargs, program: [entry(None, *args)] * size)
"""
"""Ranks are not even started: what they would run is called in the pytest process."""


def git(folder: Path, *arguments: str) -> str:
    """What a command of git prints."""
    settings = ("-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *settings, *arguments],
        cwd=folder,
        env={**os.environ, **AUTHOR},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commit(folder: Path, files: Mapping[str, str], subject: str = "A change") -> str:
    """Writes files and commits all there is; the commit's hash."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "--quiet")
    write(folder, files)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(folder, "rev-parse", "HEAD")


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes files by their paths in a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def blueprint(folder: Path, **options: object) -> Blueprint:
    """Return the blueprint of a run in the folder, on two GPUs."""
    given = {**NEUTRAL, "gpuperf_gpus": "2", **options}
    ini = (f"gpuperf_leases={folder.parent / 'leases'}", "gpuperf_grace=0.5")
    return Blueprint(folder, None, folder, False, given, ("no:randomly", "no:asyncio", "no:rerunfailures"), ini)
