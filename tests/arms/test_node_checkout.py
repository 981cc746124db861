"""The old code on nodes of a cluster: the clone that is taken, what is shared, and why a node cannot race."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.arms.node_checkout import NodeCheckout, NodeClone
from pytest_gpuperf.features.racing.arms.redirect import VARIABLE
from pytest_gpuperf.features.racing.arms.worktree import Worktree
from pytest_gpuperf.repository import CannotRace, Repository
from tests.arms.checkouts import commit, git, write


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository of pytest's node, with two commits; Ray was started in no repository."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "ray").mkdir()
    monkeypatch.chdir(tmp_path / "ray")
    commit(tmp_path / "repository", {"value": "old"})
    commit(tmp_path / "repository", {"value": "new"})
    return tmp_path / "repository"


def old(top: Path) -> str:
    return git(top, "rev-parse", "HEAD~1")


def looked_at(top: Path, sha: str, state: tuple[str, str]) -> None:
    NodeClone(str(top), sha, state).close()


def worktrees(top: Path) -> int:
    return len(git(top, "worktree", "list").splitlines()) - 1


def test_a_node_that_sees_the_checkout_of_pytests_node_makes_none(top: Path, tmp_path: Path) -> None:
    ours = Worktree.of(Repository.of(top), "HEAD~1", tmp_path / "ray")
    theirs = NodeCheckout.of(str(top), ours.commit, str(ours.folder), "false")
    assert json.loads(theirs.told[VARIABLE]) == [str(top), str(ours.folder)]
    assert worktrees(top) == 1
    theirs.close()
    assert (ours.folder / "value").read_text() == "old"


def test_a_node_with_the_repository_checks_out_beside_it_and_builds(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{top}")
    made = NodeCheckout.of(str(top), old(top), str(tmp_path / "not here"), "cp value built")
    repository, worktree = json.loads(made.told[VARIABLE])
    assert repository == str(top)
    assert (Path(worktree) / "built").read_text() == "old"
    assert made.told["PYTHONPATH"] == f"/elsewhere:{worktree}"
    made.close()
    assert worktrees(top) == 0
    assert not list(tmp_path.glob("gpuperf-race-*"))


def test_a_checkout_of_another_clone_is_not_taken(top: Path, tmp_path: Path) -> None:
    """The path is that of pytest's node, and the clone there is the node's own."""
    ours = Worktree.of(Repository.of(top), "HEAD~1", tmp_path / "ray")
    git(tmp_path, "clone", "--quiet", str(top), "own")
    shutil.move(top, tmp_path / "moved")
    shutil.move(tmp_path / "own", top)
    made = NodeCheckout.of(str(top), ours.commit, str(ours.folder), None)
    assert json.loads(made.told[VARIABLE])[1] != str(ours.folder)
    made.close()


def test_a_build_that_fails_leaves_nothing(top: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotRace, match=r"^--against-build 'exit 3' failed in \S+: got exit code 3"):
        NodeCheckout.of(str(top), old(top), "/not/here", "exit 3")
    assert worktrees(top) == 0
    assert not list(tmp_path.glob("gpuperf-race-*"))


def test_the_clone_in_which_ray_was_started_serves_as_well(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "clone", "--quiet", str(top), "elsewhere")
    sha, state = old(top), Repository.of(top).state()
    shutil.rmtree(top)
    monkeypatch.chdir(tmp_path / "elsewhere")
    looked_at(top, sha, state)
    made = NodeCheckout.of(str(top), sha, str(tmp_path / "not here"), None)
    assert json.loads(made.told[VARIABLE])[0] == str(tmp_path / "elsewhere")
    made.close()


def test_a_node_without_a_clone_is_refused(top: Path, tmp_path: Path) -> None:
    sha, state = old(top), Repository.of(top).state()
    shutil.rmtree(top)
    with pytest.raises(
        CannotRace,
        match=rf"^it has no clone of the repository at {top}, where pytest's node has it, and none with commit "
        rf"{sha[:12]} around {tmp_path}/ray, where Ray was started: clone it there at the same path, or run "
        "`ray start` in a clone$",
    ):
        looked_at(top, sha, state)


def test_a_node_whose_clone_lacks_the_commit_is_refused(top: Path) -> None:
    with pytest.raises(CannotRace, match=rf"^commit '{'1' * 40}' is not in {top}: run `git fetch --all --tags`"):
        looked_at(top, "1" * 40, Repository.of(top).state())


def test_a_node_without_git_is_refused(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha, state = old(top), Repository.of(top).state()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotRace, match=r"^git is not installed, or not on PATH, .*: install git$"):
        looked_at(top, sha, state)


def test_a_node_at_another_commit_is_refused(top: Path) -> None:
    sha, state = old(top), Repository.of(top).state()
    git(top, "checkout", "--quiet", "HEAD~1")
    with pytest.raises(
        CannotRace,
        match=rf"^its clone {top} is at commit {sha[:12]}, and pytest's at {state[0][:12]}: run `git -C {top} checkout "
        rf"{state[0]}` there$",
    ):
        looked_at(top, sha, state)


def test_a_node_with_other_uncommitted_changes_is_refused(top: Path) -> None:
    sha, state = old(top), Repository.of(top).state()
    write(top, {"not tracked": "results"})
    looked_at(top, sha, state)
    write(top, {"value": "changed"})
    with pytest.raises(
        CannotRace,
        match=rf"^its clone {top} has other uncommitted changes than pytest's: commit the changes, and check the "
        r"commit out on all nodes$",
    ):
        looked_at(top, sha, state)
