"""Files that changed since a commit, of which a test imports some."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest

from pytest_gpuperf.features.racing.changed_code import ChangedCode
from tests.arms.checkouts import commit

FILES = {
    "conftest.py": "ROOT = 1\n",
    "outside/conftest.py": "OTHER = 1\n",
    "pkg/__init__.py": "",
    "pkg/direct.py": "from .deep import N\n",
    "pkg/deep.py": "N = 1\n",
    "pkg/lazy.py": "N = 1\n",
    "pkg/unused.py": "N = 1\n",
    "changed_it.py": "import pkg.direct\nfrom pkg.direct import N\n\ndef test_a():\n    from pkg import lazy\n",
    "notes.txt": "1\n",
}


class Project(NamedTuple):
    """A repository with a test, whose modules are loaded, and its first commit."""

    folder: Path
    test: pytest.Function
    first: str


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    first = commit(tmp_path, FILES)
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("changed_it")
    for name in ("pkg.unused", "pkg.lazy"):
        import_module(name)
    test = SimpleNamespace(module=module, path=tmp_path / "changed_it.py", config=SimpleNamespace(rootpath=tmp_path))
    yield Project(tmp_path, cast(pytest.Function, test), first)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pkg", "changed_it")]:
        del sys.modules[name]


def change(folder: Path, *names: str) -> None:
    for name in names:
        with (folder / name).open("a") as file:
            file.write("\n# changed\n")


def test_a_test_that_imports_nothing_that_changed(project: Project) -> None:
    folder, test, first = project
    assert ChangedCode(folder).of(test, first) == ()
    change(folder, "pkg/unused.py", "notes.txt", "outside/conftest.py")
    assert ChangedCode(folder).of(test, first) == ()


def test_imports_are_followed_and_packages_and_conftest_files_count(project: Project) -> None:
    folder, test, first = project
    change(folder, "pkg/deep.py", "pkg/lazy.py", "pkg/unused.py")
    commit(folder, {"pkg/__init__.py": "# committed\n"}, "later")
    change(folder, "conftest.py", "changed_it.py")
    found = ChangedCode(folder).of(test, first)
    assert found == ("changed_it.py", "conftest.py", "pkg/__init__.py", "pkg/deep.py", "pkg/lazy.py")


@pytest.mark.parametrize("name", ["deadbeef", "--output=x"])
def test_a_commit_that_git_does_not_know_tells_nothing(project: Project, name: str) -> None:
    change(project.folder, "pkg/deep.py")
    assert ChangedCode(project.folder).of(project.test, name) == ()
    assert not (project.folder / "x").exists()


def test_without_a_repository_nothing_is_told(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert ChangedCode(tmp_path_factory.mktemp("elsewhere")).of(project.test, project.first) == ()


def test_the_tests_own_folder_comes_first(project: Project) -> None:
    folder, test, first = project
    (folder / "suites" / "it").mkdir(parents=True)
    (folder / "suites" / "it" / "conftest.py").write_text("")
    (folder / "suites" / "conftest.py").write_text("")
    first = commit(folder, {"suites/it/test_it.py": ""}, "a suite")
    change(folder, "pkg/deep.py", "conftest.py", "suites/conftest.py", "suites/it/conftest.py")
    inside = SimpleNamespace(module=test.module, path=folder / "suites" / "it" / "test_it.py", config=test.config)
    assert ChangedCode(folder).of(cast(pytest.Function, inside), first) == (
        "suites/it/conftest.py",
        "suites/conftest.py",
        "conftest.py",
        "pkg/deep.py",
    )
