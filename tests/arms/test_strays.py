"""A rank of the old code that has loaded files of the present code makes the race void, whatever it redirects."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.arms.redirect import Finder, Redirect
from pytest_gpuperf.features.racing.arms.strays import list_loaded_strays


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A clone with a module, and a checkout without; the module is loaded."""
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "gp_stray.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "clone"))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    importlib.import_module("gp_stray")
    yield tmp_path
    del sys.modules["gp_stray"]


def redirected(folder: Path, clone: Path) -> None:
    sys.meta_path.insert(0, Finder(Redirect.of(clone, folder / "worktree")))


def test_without_a_redirect_the_present_code_is_right_in_its_own_arm_only(folder: Path) -> None:
    clone = folder / "clone"
    assert list_loaded_strays(None, str(clone), False) == []
    assert list_loaded_strays(None, str(clone), True) == [str(clone / "gp_stray.py")]


def test_a_redirect_that_came_too_late_is_seen(folder: Path) -> None:
    clone = folder / "clone"
    redirected(folder, clone)
    assert list_loaded_strays(None, str(clone), True) == [str(clone / "gp_stray.py")]


def test_files_of_both_clones_of_a_node_count(folder: Path) -> None:
    """The node's own clone is redirected, and that at pytest's path is another one."""
    clone, other = folder / "clone", folder / "other"
    redirected(folder, other)
    assert list_loaded_strays(None, str(clone), True) == [str(clone / "gp_stray.py")]
    sys.meta_path.pop(0)
    redirected(folder, clone)
    assert list_loaded_strays(None, str(other), True) == [str(clone / "gp_stray.py")]


def test_files_of_the_old_code_are_no_strays(folder: Path) -> None:
    redirected(folder, folder / "other")
    assert list_loaded_strays(None, str(folder / "other"), True) == []
