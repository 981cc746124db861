"""What Python finds in the repository is imported from the worktree."""

import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pytest_gpuperf
from pytest_gpuperf.features.racing.arms.redirect import VARIABLE, Finder, Redirect, install, put_first
from tests.arms.checkouts import write


@pytest.fixture(autouse=True)
def _imports_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test does to the import system ends with it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def redirect(tmp_path: Path) -> Redirect:
    """Return the redirect from an empty repository to an empty worktree."""
    for name in ("repository", "worktree"):
        (tmp_path / name).mkdir()
    return Redirect.of(tmp_path / "repository", tmp_path / "worktree")


def present(redirect: Redirect, files: dict[str, str]) -> None:
    write(Path(redirect.repository), files)


def old(redirect: Redirect, files: dict[str, str]) -> None:
    write(Path(redirect.worktree), files)


def finds_in(folder: str, redirect: Redirect) -> None:
    """Puts a folder of the repository on the path behind the redirect's back, as a test may."""
    install(redirect)
    sys.path.insert(0, f"{redirect.repository}/{folder}")


def value(name: str) -> object:
    return importlib.import_module(name).VALUE


def test_a_module_comes_from_the_worktree_though_only_the_repository_is_on_the_path(redirect: Redirect) -> None:
    present(redirect, {"src/gp_module.py": "VALUE = 2", "src/gp_package/__init__.py": "", "src/gp_package/a.py": ""})
    old(redirect, {"src/gp_module.py": "VALUE = 1", "src/gp_package/__init__.py": "", "src/gp_package/b.py": "VALUE=1"})
    finds_in("src", redirect)
    assert value("gp_module") == 1
    assert value("gp_package.b") == 1
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'gp_package.a' in the old code: "):
        importlib.import_module("gp_package.a")


def test_an_entry_of_the_path_becomes_the_worktrees_where_that_has_the_folder(redirect: Redirect) -> None:
    present(redirect, {"src/a.py": "", "new/a.py": ""})
    old(redirect, {"src/gp_deleted.py": "VALUE = 1"})
    sys.path[:0] = [f"{redirect.repository}/src", f"{redirect.repository}/new"]
    install(redirect)
    assert sys.path[:2] == [f"{redirect.worktree}/src", f"{redirect.repository}/new"]
    assert value("gp_deleted") == 1


def test_what_is_imported_already_is_imported_anew(redirect: Redirect) -> None:
    present(redirect, {"gp_early.py": "VALUE = 2", "gp_space/a.py": "VALUE = 2"})
    old(redirect, {"gp_early.py": "VALUE = 1", "gp_space/a.py": "VALUE = 1"})
    sys.path.insert(0, redirect.repository)
    importlib.invalidate_caches()
    assert value("gp_early") == 2
    importlib.import_module("gp_space")
    install(redirect)
    assert value("gp_early") == 1
    assert value("gp_space.a") == 1


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("gp_kind.py", "gp_kind/__init__.py"),
        ("gp_kind/__init__.py", "gp_kind.py"),
        ("gp_kind/other.py", "gp_kind/__init__.py"),
    ],
)
def test_a_module_may_have_become_a_package_or_the_reverse(redirect: Redirect, there: str, here: str) -> None:
    present(redirect, {there: "VALUE = 2"})
    old(redirect, {here: "VALUE = 1"})
    finds_in("", redirect)
    assert value("gp_kind") == 1


def test_a_package_may_have_been_a_namespace(redirect: Redirect) -> None:
    present(redirect, {"gp_kind/__init__.py": "", "gp_kind/a.py": "VALUE = 2"})
    old(redirect, {"gp_kind/a.py": "VALUE = 1"})
    finds_in("", redirect)
    assert value("gp_kind.a") == 1


def test_a_namespace_keeps_its_parts_elsewhere(redirect: Redirect, tmp_path: Path) -> None:
    present(redirect, {"gp_space/ours.py": "VALUE = 2", "more/gp_space/new.py": "VALUE = 2"})
    old(redirect, {"gp_space/ours.py": "VALUE = 1"})
    write(tmp_path / "elsewhere", {"gp_space/theirs.py": "VALUE = 3"})
    finds_in("", redirect)
    sys.path[1:1] = [f"{redirect.repository}/more", str(tmp_path / "elsewhere")]
    assert (value("gp_space.ours"), value("gp_space.theirs")) == (1, 3)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'gp_space.new'$"):
        importlib.import_module("gp_space.new")


def test_links_to_the_repository_lead_to_the_worktree(redirect: Redirect, tmp_path: Path) -> None:
    # As setuptools' strict mode makes them, in a folder of the repository that git ignores, or outside of it.
    present(redirect, {"gp_linked.py": "VALUE = 2", "gp_far.py": "VALUE = 2"})
    old(redirect, {"gp_linked.py": "VALUE = 1", "gp_far.py": "VALUE = 1"})
    build = Path(redirect.repository) / "build"
    for folder, name in ((build, "gp_linked.py"), (tmp_path / "links", "gp_far.py")):
        folder.mkdir()
        (folder / name).symlink_to(Path(redirect.repository) / name)
        sys.path.insert(0, str(folder))
    install(redirect)
    assert (value("gp_linked"), value("gp_far")) == (1, 1)


class OwnLoader:
    """A loader that is none of Python's own."""

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.VALUE = module.__spec__.origin  # type: ignore[attr-defined]


def test_a_loader_that_is_not_pythons_is_given_the_worktrees_file(redirect: Redirect) -> None:
    class Own:
        def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
            file = f"{redirect.repository}/gp_own/__init__.py"
            return spec_from_file_location(name, file, loader=OwnLoader()) if name == "gp_own" else None  # type: ignore[arg-type]

    old(redirect, {"gp_own/__init__.py": "", "gp_own/a.py": "VALUE = 1"})
    install(redirect)
    own: Any = Own()
    sys.meta_path.insert(0, own)
    put_first()
    assert isinstance(sys.meta_path[0], Finder)
    assert value("gp_own") == f"{redirect.worktree}/gp_own/__init__.py"
    assert value("gp_own.a") == 1


def test_there_need_be_no_redirect_to_put_first() -> None:
    before = list(sys.meta_path)
    put_first()
    assert sys.meta_path == before


def test_what_the_old_code_lacks_is_not_found(redirect: Redirect) -> None:
    present(redirect, {"gp_new.py": ""})
    finds_in("", redirect)
    message = (
        rf"^No module named 'gp_new' in the old code: {redirect.repository}/gp_new.py has no counterpart "
        rf"{redirect.worktree}/gp_new.py; if it is generated and not committed, pass --against-build COMMAND, "
    )
    with pytest.raises(ModuleNotFoundError, match=message) as error:
        importlib.import_module("gp_new")
    assert error.value.name == "gp_new"


@pytest.mark.parametrize("suffix", [".py", EXTENSION_SUFFIXES[0]])
def test_so_it_is_where_only_the_worktree_is_on_the_path(redirect: Redirect, suffix: str) -> None:
    present(redirect, {f"gp_package/new{suffix}": ""})
    old(redirect, {"gp_package/__init__.py": ""})
    install(redirect)
    sys.path.insert(0, redirect.worktree)
    with pytest.raises(ImportError, match=r"^No module named 'gp_package.new' in the old code: .*--against-build"):
        importlib.import_module("gp_package.new")


def test_a_namespace_that_the_old_code_lacks_is_not_found(redirect: Redirect) -> None:
    present(redirect, {"gp_new/a.py": ""})
    finds_in("", redirect)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'gp_new' in the old code: "):
        importlib.import_module("gp_new.a")


def test_compiled_code_that_the_old_code_lacks_is_to_be_built(redirect: Redirect) -> None:
    present(redirect, {f"gp_compiled{EXTENSION_SUFFIXES[0]}": ""})
    finds_in("", redirect)
    with pytest.raises(
        ImportError, match=r"; it is compiled: pass --against-build COMMAND, which builds the old "
    ) as e:
        importlib.import_module("gp_compiled")
    assert not isinstance(e.value, ModuleNotFoundError)


def test_what_nobody_has_is_not_found_as_ever(redirect: Redirect) -> None:
    install(redirect)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'gp_nobody_has_it'$"):
        importlib.import_module("gp_nobody_has_it")


def test_what_is_installed_stays_where_it_is_though_it_lies_in_the_repository(redirect: Redirect) -> None:
    for path in ("env/lib/python3/site-packages/a.py", "usr/lib/python3/dist-packages/a.py"):
        assert not redirect.covers(f"{redirect.repository}/{path}")
    assert redirect.covers(f"{redirect.repository}/site/a.py")
    assert not redirect.covers(f"{redirect.repository}-other/a.py")
    assert not redirect.covers(f"{redirect.worktree}/a.py")


def test_pythons_own_folders_this_package_and_the_worktree_are_kept_and_a_repository_within_them_is_not() -> None:
    package = Path(pytest_gpuperf.__file__).parent
    redirect = Redirect.of(package.parent, package.parent / "build/worktree")
    assert not redirect.covers(str(package / "plugin.py"))
    assert not redirect.covers(str(package.parent / "build/worktree/suites/a.py"))
    assert redirect.covers(str(package.parent / "suites/a.py"))
    prefix = Path(sys.prefix)
    assert not Redirect.of(prefix.parent, Path("/worktree")).covers(str(prefix / "lib/a.py"))
    assert Redirect.of(prefix / "src/repository", Path("/worktree")).covers(str(prefix / "src/repository/a.py"))


def test_a_process_hands_its_redirect_over_by_its_environment(redirect: Redirect) -> None:
    present(redirect, {"src/a.py": ""})
    old(redirect, {"src/a.py": ""})
    environ = {"PYTHONPATH": f"/other:{redirect.repository}/src:relative"}
    redirect.hand_over(environ)
    assert environ["PYTHONPATH"] == f"/other:{redirect.worktree}/src:relative"
    assert Redirect.from_environ(environ) == redirect
    assert Redirect.from_environ({}) is None
    assert VARIABLE in environ


def test_strays_are_the_repositorys_own_files(redirect: Redirect) -> None:
    own, other = f"{redirect.repository}/a.py", f"{redirect.worktree}/a.py"
    assert redirect.list_strays([own, other, "/usr/lib/a.py", f"{redirect.repository}/v/site-packages/a.py"]) == [own]
