"""What git says of the repository that holds a run's tests."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.git import GitFailed, NoGit, run_git

_DUBIOUS = re.compile(r"detected dubious ownership in repository at '(.+)'")


class CannotRace(Exception):
    """Two codes cannot be compared here. The message names what, where, why and the fix."""


class NoRepository(CannotRace):
    """A folder is in no repository."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A checkout of a repository."""

    top: Path
    """Its top folder; a real path."""

    @classmethod
    def of(cls, folder: Path) -> Repository:
        """The repository that a folder is in.

        Raises:
            CannotRace: there is no git, or no repository.
        """
        try:
            top = run_git(folder, "rev-parse", "--show-toplevel")
        except NoGit as error:
            raise CannotRace(
                "git is not installed, or not on PATH, and the old code comes from a commit: install git"
            ) from error
        except GitFailed as error:
            if dubious := _DUBIOUS.search(str(error)):
                raise CannotRace(
                    f"{folder} is in a clone of another user, which git does not read: run "
                    f"`git config --global --add safe.directory {shlex.quote(dubious[1])}`"
                ) from error
            raise NoRepository(
                f"{folder} is in no git repository that git can read, and the old code comes from one: git says "
                f"{str(error)!r}: run the tests in a clone of the repository"
            ) from error
        return cls(Path(os.path.realpath(top)))

    def resolve(self, commit: str) -> str:
        """The full hash of a commit, branch or tag.

        Raises:
            CannotRace: this clone does not have it.
        """
        sha = self._find_sha(commit)
        if sha is not None:
            return sha
        try:
            shallow = run_git(self.top, "rev-parse", "--is-shallow-repository") == "true"
        except GitFailed:
            shallow = False
        if shallow:
            raise CannotRace(
                f"commit {commit!r} is not in {self.top}, which is a shallow clone: run `git fetch --unshallow`, or "
                f"`git fetch --depth=1 origin {commit}` for this commit only; on GitHub, give actions/checkout "
                "`fetch-depth: 0`"
            )
        raise CannotRace(
            f"commit {commit!r} is not in {self.top}: run `git fetch --all --tags`, or `git fetch origin {commit}` if "
            "no branch has it any more; if it is a baseline's and gone, record the baselines again"
        )

    def is_dirty(self, folder: Path | None = None) -> bool:
        """Whether files differ from the commit that is checked out, or are not committed at all.

        Args:
            folder: where to look; the whole checkout without one.

        Raises:
            CannotRace: git cannot tell.
        """
        return bool(self._ask("status", "--porcelain", "--", str(folder or self.top)))

    def holds(self, commit: str, but: Iterable[Path]) -> bool:
        """Whether the checkout has exactly the files of a commit: no change since, and no file that is not committed.

        Args:
            commit: a hash, branch or tag.
            but: files, and folders with all that is in them, that do not count.

        Raises:
            CannotRace: git cannot tell.
        """
        sha = self.resolve(commit)
        real = [path.resolve() for path in but]
        files = [".", *(f":(exclude,literal){path}" for path in real if path.is_relative_to(self.top))]
        changed = self._ask("diff", "--name-only", "--end-of-options", sha, "--", *files)
        untracked = self._ask("ls-files", "--others", "--exclude-standard", "--", *files)
        return not changed and not untracked

    def state(self) -> tuple[str, str]:
        """The commit that is checked out, and a digest of what has changed since in files that git tracks.

        Raises:
            CannotRace: git cannot tell.
        """
        changes = self._ask("diff", "--binary", "--no-color", "--no-ext-diff", "HEAD")
        digest = hashlib.sha256(changes.encode(errors="surrogateescape")).hexdigest()
        return self._ask("rev-parse", "HEAD"), digest if changes else ""

    def list_commits(self, good: str, bad: str) -> list[str]:
        """The commits after ``good`` up to ``bad`` by their full hashes, the oldest first; merges count as one.

        Raises:
            CannotRace: a commit is missing, or ``bad`` does not come after ``good``.
        """
        first, last = self.resolve(good), self.resolve(bad)
        commits = self._ask("rev-list", "--reverse", "--first-parent", f"{first}..{last}").split()
        if not commits or self._ask("merge-base", first, last) != first:
            raise CannotRace(
                f"{bad!r} does not come after {good!r} in {self.top}: name a good commit that the bad one descends from"
            )
        return commits

    def subject(self, commit: str) -> str:
        """The first line of a commit's message.

        Raises:
            CannotRace: the commit is missing.
        """
        return self._ask("show", "--no-patch", "--format=%s", self.resolve(commit))

    def _find_sha(self, commit: str) -> str | None:
        try:
            return run_git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
        except GitFailed:
            return None

    def _ask(self, *arguments: str) -> str:
        try:
            return run_git(self.top, *arguments)
        except GitFailed as error:
            raise CannotRace(
                f"`git {' '.join(arguments)}` failed in {self.top}: {error}: mend the repository"
            ) from error
