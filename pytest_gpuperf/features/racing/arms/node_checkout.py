"""The old code on a node of a cluster, beside the node's own clone of the repository. Runs on nodes.

A node that shares the clone and the temporary folder with pytest's node has the old code already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from pytest_gpuperf.features.racing.arms.building import build_in
from pytest_gpuperf.features.racing.arms.folder import RaceFolder, remove_leftovers
from pytest_gpuperf.features.racing.arms.redirect import Redirect
from pytest_gpuperf.features.racing.arms.worktree import Worktree, prune
from pytest_gpuperf.git import GitFailed, run_git
from pytest_gpuperf.repository import CannotRace, NoRepository, Repository

State = tuple[str, str]
"""A commit, and a digest of what has changed since; as ``Repository.state``."""


class NodeClone:
    """A node's clone, which can race; nothing is made."""

    told = None

    def __init__(self, top: str, sha: str, state: State) -> None:
        """Looks for the clone.

        Args:
            top: folder of the repository on pytest's node.
            sha: the commit of the old code.
            state: of the clone on pytest's node.

        Raises:
            CannotRace: there is none, it lacks the commit, or it has other present code than pytest's.
        """
        repository = clone(Path(top), sha)
        commit, changes = repository.state()
        if commit != state[0]:
            raise CannotRace(
                f"its clone {repository.top} is at commit {commit[:12]}, and pytest's at {state[0][:12]}: run "
                f"`git -C {repository.top} checkout {state[0]}` there"
            )
        if changes != state[1]:
            raise CannotRace(
                f"its clone {repository.top} has other uncommitted changes than pytest's: commit the changes, and "
                "check the commit out on all nodes"
            )

    def close(self) -> None:
        """Nothing is to be undone."""


class NodeCheckout:
    """The old code on a node, until it is closed."""

    def __init__(self, redirect: Redirect, remove: Callable[[], None]) -> None:
        """Takes a checkout over.

        Args:
            redirect: from the node's clone to the old code.
            remove: removes the old code.
        """
        variables = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        redirect.hand_over(variables)
        self.told: Mapping[str, str] = variables
        """The environment in which ranks import the old code."""
        self.close = remove

    @classmethod
    def of(cls, top: str, sha: str, folder: str, build: str | None) -> Self:
        """Checks a commit out, and builds it, unless the checkout of pytest's node is there.

        Args:
            top: folder of the repository on pytest's node.
            sha: the commit.
            folder: of the checkout on pytest's node.
            build: a command of the shell that is run in the checkout first; None for none.

        Raises:
            CannotRace: there is no clone, or the commit cannot be checked out or built.
        """
        repository = clone(Path(top), sha)
        if str(repository.top) == top and _is_whole(Path(folder), sha):
            return cls(Redirect.of(repository.top, Path(folder)), lambda: None)
        if remove_leftovers():
            prune(repository)
        race = RaceFolder.new()
        try:
            worktree = Worktree.of(repository, sha, race.path)
        except BaseException:
            race.close()
            raise

        def remove() -> None:
            worktree.close()
            race.close()

        try:
            if build is not None:
                build_in(worktree.folder, build, race.path / "build.log")
            return cls(Redirect.of(repository.top, worktree.folder), remove)
        except BaseException:
            remove()
            raise


def clone(top: Path, sha: str) -> Repository:
    """The clone of the tests' repository on this node: at the same path as pytest's, or around Ray's working folder.

    Args:
        top: folder of the repository on pytest's node.
        sha: a commit that it must have.

    Raises:
        CannotRace: there is no clone here, it lacks the commit, or git is missing.
    """
    try:
        found = Repository.of(top)
    except NoRepository:
        here = Path.cwd()
        try:
            found = Repository.of(here)
            found.resolve(sha)
        except CannotRace as error:
            raise CannotRace(
                f"it has no clone of the repository at {top}, where pytest's node has it, and none with commit "
                f"{sha[:12]} around {here}, where Ray was started: clone it there at the same path, or run `ray start` "
                "in a clone"
            ) from error
    found.resolve(sha)
    return found


def _is_whole(folder: Path, sha: str) -> bool:
    """Whether git reads a checkout of the commit there, which it cannot if the folder belongs to another clone."""
    try:
        return run_git(folder, "rev-parse", "HEAD") == sha
    except GitFailed:
        return False
