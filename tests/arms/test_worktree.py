"""The old code's files: checked out beside the present ones, and removed again."""

import os
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.arms import worktree
from pytest_gpuperf.features.racing.arms.worktree import Worktree, prune
from pytest_gpuperf.git import GitFailed
from pytest_gpuperf.git import run_git as genuine
from pytest_gpuperf.repository import CannotRace, Repository
from tests.arms.checkouts import commit, git, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with one commit and a change that is not committed."""
    commit(tmp_path / "repository", {"a.py": "old"})
    write(tmp_path / "repository", {"a.py": "present", "b.py": "present"})
    (tmp_path / "race").mkdir()
    return tmp_path / "repository"


def added(folder: Path, name: str = "HEAD") -> Worktree:
    return Worktree.of(Repository.of(folder), name, folder.parent / "race")


def known(folder: Path) -> int:
    """How many worktrees git knows."""
    return git(folder, "worktree", "list", "--porcelain").count("worktree ")


def test_it_has_the_commits_files_under_the_repositorys_name(folder: Path) -> None:
    old = added(folder)
    assert old.folder == folder.parent / "race/repository"
    assert old.commit == git(folder, "rev-parse", "HEAD")
    assert (old.folder / "a.py").read_text() == "old"
    assert not (old.folder / "b.py").exists()
    old.close()
    assert not old.folder.exists()
    assert known(folder) == 1


def test_neither_the_present_files_nor_their_index_are_touched_though_it_is_locked(folder: Path) -> None:
    git(folder, "add", "b.py")
    (folder / ".git/index.lock").touch()
    index = (folder / ".git/index").read_bytes()
    added(folder).close()
    assert (folder / ".git/index").read_bytes() == index
    assert (folder / "a.py").read_text() == "present"


def test_no_hook_runs(folder: Path) -> None:
    hook = folder / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {folder}/ran")
    hook.chmod(0o755)
    added(folder).close()
    assert not (folder / "ran").exists()


def test_two_races_have_one_each(folder: Path) -> None:
    (folder.parent / "race/other").mkdir()
    first, second = added(folder), Worktree.of(Repository.of(folder), "HEAD", folder.parent / "race/other")
    first.close()
    assert (second.folder / "a.py").exists()
    second.close()
    assert known(folder) == 1


def test_one_that_somebody_has_removed_is_forgotten(folder: Path) -> None:
    old = added(folder)
    for path in (old.folder / "a.py", old.folder / ".git"):
        path.unlink()
    old.folder.rmdir()
    old.close()
    assert known(folder) == 1


def test_git_forgets_one_whose_folder_is_gone(folder: Path) -> None:
    old = added(folder)
    old.folder.rename(folder.parent / "moved")
    prune(Repository.of(folder))
    assert known(folder) == 1


def test_a_filter_that_fails_as_that_of_large_files_does_is_named(folder: Path) -> None:
    commit(folder, {"large.bin": "pointer", ".gitattributes": "*.bin filter=lfs"})
    git(folder, "config", "filter.lfs.smudge", "false")
    git(folder, "config", "filter.lfs.required", "true")
    with pytest.raises(
        CannotRace, match=rf"a filter of git failed, .*: run `git -C {folder} lfs fetch origin \w+`, or "
    ):
        added(folder)
    assert known(folder) == 1
    assert not (folder.parent / "race/repository").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fatal: write error: No space left on device", "free space there, or set TMPDIR to a folder with more of it$"),
        ("fatal: anything", "got 'fatal: anything': try `git -C .* worktree add --detach FOLDER .*`, and mend it$"),
    ],
)
def test_what_git_cannot_do_is_told_with_a_way_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    def fails(folder: Path, *arguments: str, timeout: float = 0) -> str:
        raise GitFailed(text)

    ours = Repository.of(folder)
    sha = git(folder, "rev-parse", "HEAD")
    monkeypatch.setattr(Repository, "resolve", lambda self, commit: sha)
    monkeypatch.setattr(worktree, "run_git", fails)
    with pytest.raises(CannotRace, match=rf"(?s)^commit {sha[:12]} of {folder} cannot be checked out in .*{message}"):
        Worktree.of(ours, "HEAD", folder.parent / "race")


def test_an_interruption_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def interrupted(folder: Path, *arguments: str, timeout: float = 60) -> str:
        text = genuine(folder, *arguments, timeout=timeout)
        if arguments[:2] == ("worktree", "add"):
            raise KeyboardInterrupt
        return text

    monkeypatch.setattr(worktree, "run_git", interrupted)
    with pytest.raises(KeyboardInterrupt):
        added(folder)
    assert known(folder) == 1
    assert os.listdir(folder.parent / "race") == []


@pytest.fixture
def with_submodules(folder: Path) -> Path:
    """Submodules one in another; each is one commit further than the repository's commit says."""
    for name, inner in (("inner", ""), ("outer", "inner")):
        commit(folder.parent / name, {f"{name}.py": "old"})
        if inner:
            git(folder.parent / name, "submodule", "--quiet", "add", str(folder.parent / inner), inner)
            commit(folder.parent / name, {})
    git(folder, "submodule", "--quiet", "add", str(folder.parent / "outer"), "lib/outer")
    commit(folder, {})
    git(folder, "submodule", "--quiet", "update", "--init", "--recursive")
    for name in ("lib/outer/inner", "lib/outer"):
        commit(folder / name, {f"{Path(name).name}.py": "present"})
    return folder


def test_submodules_are_checked_out_where_the_commit_has_them(with_submodules: Path) -> None:
    old = added(with_submodules)
    assert (old.folder / "lib/outer/outer.py").read_text() == "old"
    assert (old.folder / "lib/outer/inner/inner.py").read_text() == "old"
    old.close()
    assert not old.folder.exists()
    assert [known(with_submodules / name) for name in (".", "lib/outer", "lib/outer/inner")] == [1, 1, 1]


def test_a_submodule_without_the_commit_is_to_be_fetched(with_submodules: Path) -> None:
    git(with_submodules, "update-index", "--cacheinfo", f"160000,{'1' * 40},lib/outer")
    git(with_submodules, "commit", "--quiet", "--message", "Another outer")
    outer = with_submodules / "lib/outer"
    with pytest.raises(
        CannotRace, match=rf"^the submodule {outer} has no commit 1{{12}}, .*: run `git -C {outer} fetch"
    ):
        added(with_submodules)
    assert known(with_submodules) == 1


def test_a_submodule_that_the_present_code_does_without_stays_empty(with_submodules: Path) -> None:
    git(with_submodules, "submodule", "--quiet", "deinit", "--force", "lib/outer")
    old = added(with_submodules)
    assert os.listdir(old.folder / "lib/outer") == []
    old.close()
