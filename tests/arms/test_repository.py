"""What git says of a repository, and what is said where it cannot tell."""

import shlex
import shutil
from pathlib import Path

import pytest

from pytest_gpuperf.git import GitFailed, run_git
from pytest_gpuperf.repository import CannotRace, Repository
from tests.arms import checkouts
from tests.arms.checkouts import commit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with two commits."""
    commit(tmp_path / "repository", {"a/a.py": "1"}, "The first")
    commit(tmp_path / "repository", {"a/a.py": "2"}, "The second")
    return tmp_path / "repository"


def test_a_repository_is_found_from_any_folder_of_it(folder: Path) -> None:
    assert Repository.of(folder / "a").top == folder


def test_a_commit_is_found_by_what_names_it(folder: Path) -> None:
    repository = Repository.of(folder)
    head = checkouts.git(folder, "rev-parse", "HEAD")
    assert repository.resolve("HEAD") == repository.resolve("main") == repository.resolve(head[:8]) == head
    for other in ("HEAD~2", "--all"):
        with pytest.raises(CannotRace):
            repository.resolve(other)
    assert repository.subject("HEAD~1") == "The first"


def test_a_checkout_is_dirty_by_changes_and_by_new_files_below_the_folder(folder: Path) -> None:
    repository = Repository.of(folder)
    assert not repository.is_dirty()
    (folder / "b.py").touch()
    assert repository.is_dirty()
    assert not repository.is_dirty(folder / "a")
    (folder / "a/a.py").write_text("3")
    assert repository.is_dirty(folder / "a")


def test_a_checkout_holds_a_commit_if_no_file_differs_but_records(folder: Path, tmp_path: Path) -> None:
    repository, records = Repository.of(folder), [folder / "a/records", folder / "a/[1].json", tmp_path / "elsewhere"]
    assert repository.holds("HEAD", but=records)
    assert not repository.holds("HEAD~1", but=records)
    recorded = commit(folder, {"a/records/one.json": "{}"})
    assert repository.holds("HEAD~1", but=records)
    (folder / "a/[1].json").touch()
    assert repository.holds("HEAD~1", but=records)
    assert not repository.holds("HEAD~1", but=records[1:])
    assert not repository.holds("HEAD~1", but=records[:1])
    commit(folder, {"a/a.py": "3"})
    commit(folder, {"a/a.py": "2"})
    assert repository.holds(recorded, but=records)  # the same files by another way
    (folder / "a/new.py").touch()
    assert not repository.holds(recorded, but=records)
    (folder / ".git/info/exclude").write_text("new.py")
    assert repository.holds(recorded, but=records)
    with pytest.raises(CannotRace, match=r"^commit 'nowhere' is not in "):
        repository.holds("nowhere", but=records)


def test_commits_are_listed_from_the_oldest_after_the_good_one(folder: Path) -> None:
    repository = Repository.of(folder)
    third = commit(folder, {"a/a.py": "3"})
    assert repository.list_commits("HEAD~2", "HEAD") == [repository.resolve("HEAD~1"), third]


@pytest.mark.parametrize(("good", "bad"), [("HEAD", "HEAD~1"), ("HEAD", "HEAD"), ("HEAD", "other")])
def test_a_bad_commit_that_is_no_later_one_is_refused(folder: Path, good: str, bad: str) -> None:
    checkouts.git(folder, "checkout", "--quiet", "-b", "other", "HEAD~1")
    commit(folder, {"other.py": ""})
    checkouts.git(folder, "checkout", "--quiet", "main")
    with pytest.raises(CannotRace, match=rf"^'{bad}' does not come after '{good}' in {folder}: name a good commit "):
        Repository.of(folder).list_commits(good, bad)


def test_a_commit_that_is_nowhere_is_to_be_fetched(folder: Path) -> None:
    with pytest.raises(
        CannotRace, match=rf"^commit 'gone' is not in {folder}: run `git fetch --all .*`git fetch origin gone` "
    ):
        Repository.of(folder).resolve("gone")


def test_a_shallow_clone_is_to_be_deepened(folder: Path, tmp_path: Path) -> None:
    old = checkouts.git(folder, "rev-parse", "HEAD~1")
    checkouts.git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{folder}", "shallow")
    commands = rf"run `git fetch --unshallow`, or `git fetch --depth=1 origin {old}` for this commit only; "
    with pytest.raises(CannotRace, match=rf"^commit '{old}' is not in \S+/shallow, .*: {commands}"):
        Repository.of(tmp_path / "shallow").resolve(old)
    checkouts.git(tmp_path / "shallow", "fetch", "--quiet", "--depth=1", "origin", old)
    assert Repository.of(tmp_path / "shallow").resolve(old) == old


def test_a_clone_of_another_user_is_to_be_trusted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CannotRace, match=r"is in a clone of another user, which git does not read: ") as caught:
        Repository.of(folder / "a")
    cure = f"git config --global --add safe.directory {folder}"
    assert str(caught.value).endswith(f"run `{cure}`")
    checkouts.git(folder, *shlex.split(cure)[1:])
    assert Repository.of(folder / "a").top == folder


def test_a_folder_in_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotRace, match=rf"^{tmp_path} is in no git repository .*: run the tests in a clone"):
        Repository.of(tmp_path)


def test_a_repository_that_is_damaged_says_so(folder: Path) -> None:
    repository = Repository.of(folder)
    shutil.rmtree(folder / ".git")
    with pytest.raises(CannotRace, match=rf"^`git status --porcelain -- {folder}` failed in {folder}: .*: mend the "):
        repository.is_dirty()


def test_without_git_there_is_no_race(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotRace, match=r"^git is not installed, or not on PATH, .*: install git$"):
        Repository.of(folder)


def test_a_folder_that_is_gone_is_not_taken_for_a_lack_of_git(tmp_path: Path) -> None:
    with pytest.raises(GitFailed, match=r"^there is no folder "):
        run_git(tmp_path / "gone", "status")


def test_a_command_that_takes_too_long_fails(folder: Path) -> None:
    with pytest.raises(GitFailed, match=r"^it did not end within 0.05 s$"):
        run_git(folder, "-c", "alias.wait=!sleep 1", "wait", timeout=0.05)


def test_a_hook_of_git_that_runs_pytest_misleads_nobody(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    assert Repository.of(folder).top == folder
