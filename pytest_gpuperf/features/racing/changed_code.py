"""Which of the files that changed since a commit a test imports: where to look first for slower code."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

import pytest

from pytest_gpuperf.git import GitFailed, run_git
from pytest_gpuperf.repository import CannotRace, Repository


class ChangedCode:
    """Asks git once for each commit, and reads each module's imports once."""

    def __init__(self, folder: Path) -> None:
        """Nothing is asked yet.

        Args:
            folder: in the repository.
        """
        self._folder = folder
        self._changed: dict[str, frozenset[str]] = {}
        self._imports: dict[str, tuple[str, ...]] = {}

    def of(self, item: pytest.Function, commit: str) -> tuple[str, ...]:
        """Return the files that differ between the commit and the checkout, and that the test imports, itself included.

        Imports are followed from file to file, as far as this process has loaded the modules. The conftest files above
        the test count too.

        Args:
            item: the test.
            commit: a hash, branch or tag.

        Returns:
            Paths relative to the top of the repository, those that share the most folders with the test first; none if
            git cannot tell.
        """
        try:
            top = Repository.of(self._folder).top
        except CannotRace:
            return ()
        changed = self._find_changed_files(commit, top)
        files = {*self._list_files(item.module), *_iterate_conftests(item.path, item.config.rootpath)}
        inside = (os.path.relpath(os.path.realpath(file), top) for file in files)
        test = os.path.relpath(os.path.realpath(item.path), top)
        return tuple(sorted(changed.intersection(inside), key=lambda file: (-_count_shared_folders(file, test), file)))

    def _find_changed_files(self, commit: str, top: Path) -> frozenset[str]:
        if commit not in self._changed:
            try:
                told = run_git(top, "diff", "--name-only", "-z", "--end-of-options", commit, "--")
            except GitFailed:
                told = ""
            self._changed[commit] = frozenset(filter(None, told.split("\0")))
        return self._changed[commit]

    def _list_files(self, module: ModuleType) -> set[str]:
        found: set[str] = set()
        left = [module]
        while left:
            one = left.pop()
            file = getattr(one, "__file__", None)
            if not isinstance(file, str) or file in found or "site-packages" in file or file.startswith(sys.prefix):
                continue
            found.add(file)
            left += [loaded for name in self._list_imports(one, file) if (loaded := sys.modules.get(name)) is not None]
        return found

    def _list_imports(self, module: ModuleType, file: str) -> tuple[str, ...]:
        if file not in self._imports:
            self._imports[file] = tuple(_read_imports(module, file))
        return self._imports[file]


def _read_imports(module: ModuleType, file: str) -> Iterator[str]:
    """Names of all modules that a file's import statements load, their packages included."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):  # no Python source
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _iterate_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), module.__package__ or "")
            except ImportError:  # relative, outside of any package
                continue
            yield from _iterate_packages(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _iterate_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _count_shared_folders(file: str, other: str) -> int:
    """How many folders, from the top of the repository, have both files in them."""
    return len(Path(os.path.commonpath((file, other))).parts)


def _iterate_conftests(test: Path, root: Path) -> Iterator[str]:
    for folder in test.parents:
        if (conftest := folder / "conftest.py").is_file():
            yield str(conftest)
        if folder == root:
            return
