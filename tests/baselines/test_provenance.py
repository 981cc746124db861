"""What a file keeps of who recorded it."""

import json
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.plain import make_plain
from pytest_gpuperf.baselines.provenance import UNKNOWN, is_dirty, read_commit, stamp
from pytest_gpuperf.git import NoGit, run_git, show


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.delenv("GITHUB_SHA", raising=False)
    folder = tmp_path / "clone"
    folder.mkdir()
    run_git(folder, "init", "-q")
    return folder


def test_a_name_that_is_no_utf8_is_recorded_with_marks(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "gitconfig").write_bytes(b"[user]\n\tname = Ren\xe9\n")
    made = stamp(repository, "why")
    assert made.author == "Ren\ufffd"
    assert json.loads(json.dumps(make_plain(made)).encode())["author"] == "Ren\ufffd"
    assert show(run_git(repository, "config", "user.name")) == "Ren\ufffd"


def test_without_a_commit_or_git_nothing_is_known(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_commit(repository) == UNKNOWN
    assert not is_dirty(repository / "gone")
    monkeypatch.setenv("PATH", "/nowhere")
    assert read_commit(repository) == UNKNOWN
    with pytest.raises(NoGit, match=r"^git is not installed, or not on PATH$"):
        run_git(repository, "status")
