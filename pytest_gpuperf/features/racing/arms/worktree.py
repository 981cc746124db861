"""A checkout of a commit beside the present one, with its submodules; made by ``git worktree``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.git import GitFailed, run_git
from pytest_gpuperf.repository import CannotRace, Repository

_CHECKOUT = 900.0  # seconds; a large repository, whose large files come over the network
_GITLINK = "160000"  # gitrepository-layout(5), git-ls-tree(1): the mode of a submodule


@dataclass(frozen=True, slots=True)
class Worktree:
    """The files of one commit."""

    commit: str
    """Its full hash."""
    folder: Path
    """Its top folder; a real path."""
    parts: tuple[tuple[Path, Path], ...]
    """The checkout that each worktree belongs to, and the worktree: the repository's first, then its submodules'."""

    @classmethod
    def of(cls, repository: Repository, commit: str, parent: Path) -> Worktree:
        """Checks a commit out. Touches neither the present files nor their index.

        Args:
            repository: that has the commit.
            commit: a hash, branch or tag.
            parent: an existing folder; the worktree has the repository's name in it.

        Raises:
            CannotRace: the commit is gone, or cannot be checked out.
        """
        sha = repository.resolve(commit)
        folder = parent / repository.top.name
        parts: list[tuple[Path, Path]] = []
        try:
            for part in _add_worktree(repository.top, sha, folder):
                parts.append(part)
        except BaseException:  # Ctrl-C too: it may take long
            _remove([*parts, (repository.top, folder)])
            raise
        return cls(sha, folder, tuple(parts))

    def close(self) -> None:
        """Removes the files, and what git keeps about them."""
        _remove(self.parts)


def prune(repository: Repository) -> None:
    """Has git forget worktrees whose folders are gone."""
    _forget(repository.top)


def _add_worktree(checkout: Path, sha: str, folder: Path) -> Iterator[tuple[Path, Path]]:
    try:
        run_git(checkout, "worktree", "add", "--detach", "--force", str(folder), sha, timeout=_CHECKOUT)
        # In the checkout, which git may trust while it does not trust the temporary folder.
        tree = run_git(checkout, "ls-tree", "-r", "-z", "--full-tree", sha)
    except GitFailed as error:
        raise _make_error(checkout, sha, folder, str(error)) from error
    yield checkout, folder
    for entry in filter(None, tree.split("\0")):
        facts, _, name = entry.partition("\t")
        mode, _, link = facts.split()
        present = checkout / name
        if mode == _GITLINK and (present / ".git").exists():  # else the present code does without it, too
            yield from _add_submodule(present, link, folder / name)


def _add_submodule(present: Path, sha: str, folder: Path) -> Iterator[tuple[Path, Path]]:
    try:
        run_git(present, "cat-file", "-e", f"{sha}^{{commit}}")
    except GitFailed as error:
        raise CannotRace(
            f"the submodule {present} has no commit {sha[:12]}, which the old code asks for: run "
            f"`git -C {present} fetch origin {sha}`"
        ) from error
    yield from _add_worktree(present, sha, folder)


def _make_error(checkout: Path, sha: str, folder: Path, text: str) -> CannotRace:
    what = f"commit {sha[:12]} of {checkout} cannot be checked out in {folder}"
    if "smudge" in text or "lfs" in text.lower():
        return CannotRace(
            f"{what}: a filter of git failed, usually as large files of git LFS are not here: got {text!r}: run "
            f"`git -C {checkout} lfs fetch origin {sha}`, or set GIT_LFS_SKIP_SMUDGE=1 if no test reads these files"
        )
    if "No space left" in text or "Disk quota" in text:
        return CannotRace(f"{what}: got {text!r}: free space there, or set TMPDIR to a folder with more of it")
    return CannotRace(f"{what}: got {text!r}: try `git -C {checkout} worktree add --detach FOLDER {sha}`, and mend it")


def _remove(parts: list[tuple[Path, Path]] | tuple[tuple[Path, Path], ...]) -> None:
    for checkout, folder in reversed(parts):
        try:
            run_git(checkout, "worktree", "remove", "--force", "--force", str(folder))
        except GitFailed:  # it was never finished, or somebody has removed it
            shutil.rmtree(folder, ignore_errors=True)
            _forget(checkout)


def _forget(checkout: Path) -> None:
    with suppress(GitFailed):  # git forgets them by itself after three months (gc.worktreePruneExpire)
        run_git(checkout, "worktree", "prune")
