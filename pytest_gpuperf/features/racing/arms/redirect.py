"""Imports from a worktree of what Python would find in the repository. Runs in the processes of an arm.

A worktree holds the old code, but an editable installation, ``PYTHONPATH`` or a test's own path lead to the present
code. So a finder before all others asks them, and replaces what they find in the repository.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "GPUPERF_REDIRECT"
"""Environment variable that hands a redirect over to processes that are started later."""

_INSTALLED = ("site-packages", "dist-packages")
_PACKAGE = os.path.realpath(Path(__file__).parents[3])  # the plugin is this installation's in both arms
_LOADERS = (
    importlib.machinery.SourceFileLoader,
    importlib.machinery.SourcelessFileLoader,
    importlib.machinery.ExtensionFileLoader,
)
_INIT = "__init__.py"


@dataclass(frozen=True, slots=True)
class Redirect:
    """Whose files are replaced, and by whose."""

    repository: str
    """Real path of the present checkout's top folder."""
    worktree: str
    """Real path of the top folder of the checkout that replaces it."""
    kept: tuple[str, ...] = ()
    """Real paths in the repository whose files are not replaced: what is installed."""

    @classmethod
    def of(cls, repository: Path, worktree: Path) -> Redirect:
        """The redirect for this process: what is installed for it stays."""
        top, other = os.path.realpath(repository), os.path.realpath(worktree)
        # A repository may in turn lie in a virtual environment, where pip clones what is to be editable.
        installed = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, _PACKAGE, other)
        kept = dict.fromkeys(path for path in map(os.path.realpath, installed) if _is_in(path, top) and path != top)
        return cls(top, other, tuple(kept))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Redirect | None:
        """The redirect that ``hand_over`` left; None if there is none."""
        text = environ.get(VARIABLE)
        return None if text is None else cls.of(*map(Path, json.loads(text)))

    def hand_over(self, environ: MutableMapping[str, str]) -> None:
        """Has processes that get this environment redirect their imports too."""
        environ[VARIABLE] = json.dumps([self.repository, self.worktree])
        if (path := environ.get("PYTHONPATH")) is not None:
            environ["PYTHONPATH"] = os.pathsep.join(map(self.on_path, path.split(os.pathsep)))

    def covers(self, path: str) -> bool:
        """Whether a file or folder is one of the repository's own."""
        return bool(self._list_own_names(path))

    def map_path(self, path: str) -> str:
        """The place where the worktree has the file or folder; it need not exist."""
        places = [self.worktree + one[len(self.repository) :] for one in self._list_own_names(path)]
        return next(filter(os.path.exists, places), places[0])

    def present(self, path: str) -> str | None:
        """The place where the repository has what is in the worktree; None for what is elsewhere."""
        return self.repository + path[len(self.worktree) :] if _is_in(path, self.worktree) else None

    def on_path(self, path: str) -> str:
        """An entry of a module path; one that the worktree lacks stays, and the finder replaces what it leads to."""
        if not os.path.isabs(path) or not self.covers(path):
            return path
        mapped = self.map_path(path)
        return mapped if os.path.exists(mapped) else path

    def list_strays(self, files: Iterable[str]) -> list[str]:
        """The files that should have come from the worktree."""
        return [file for file in files if self.covers(file)]

    def _list_own_names(self, path: str) -> list[str]:
        # By its name and by what links lead to: setuptools' strict mode fills a folder with links.
        names = dict.fromkeys([os.path.normpath(path), os.path.realpath(path)])
        return [name for name in names if _is_in(name, self.repository) and not self._is_kept(name)]

    def _is_kept(self, path: str) -> bool:
        parts = path[len(self.repository) :].split(os.sep)
        return any(part in _INSTALLED for part in parts) or any(_is_in(path, kept) for kept in self.kept)


class Finder:
    """The first of ``sys.meta_path``: asks all others, and takes from the worktree what they find in the repository."""

    def __init__(self, redirect: Redirect) -> None:
        self.redirect = redirect

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The place where a module is loaded from; None if nobody has it.

        Raises:
            ImportError: the repository has the module and the worktree does not.
        """
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                return self._redirect(spec)
        self._refuse_if_present(fullname, sys.path if path is None else path)
        return None

    def _refuse_if_present(self, fullname: str, path: Iterable[str]) -> None:
        # Nobody has it. If the present code does, the error can say what would help.
        counterparts = [self.redirect.present(folder) for folder in path if isinstance(folder, str)]
        spec = PathFinder.find_spec(fullname, [folder for folder in counterparts if folder is not None])
        if spec is not None and spec.origin is not None and spec.has_location:
            raise self._make_error(spec, spec.origin, self.redirect.map_path(spec.origin))

    def _redirect(self, spec: ModuleSpec) -> ModuleSpec:
        if spec.origin is None or not spec.has_location:
            return self._redirect_namespace(spec)
        if not self.redirect.covers(spec.origin):
            return spec
        file = self.redirect.map_path(spec.origin)
        if os.path.isfile(file):
            return _make_spec(spec, file)
        # A module may have become a package since, or the reverse.
        folder = os.path.dirname(file)
        found = PathFinder.find_spec(
            spec.name, [os.path.dirname(folder) if spec.submodule_search_locations else folder]
        )
        if found is None:
            raise self._make_error(spec, spec.origin, file)
        return found

    def _redirect_namespace(self, spec: ModuleSpec) -> ModuleSpec:
        folders = list(spec.submodule_search_locations or ())
        if not any(map(self.redirect.covers, folders)):
            return spec
        here = []
        for folder in folders:
            if not self.redirect.covers(folder):
                here.append(folder)
            elif os.path.isdir(other := self.redirect.map_path(folder)):
                if os.path.isfile(init := os.path.join(other, _INIT)):
                    return _make_spec(spec, init)
                here.append(other)
        if not any(map(os.path.isdir, here)):
            raise self._make_error(spec, folders[0], self.redirect.map_path(folders[0]))
        namespace = ModuleSpec(spec.name, None, is_package=True)
        namespace.submodule_search_locations = here
        return namespace

    def _make_error(self, spec: ModuleSpec, found: str, expected: str) -> ImportError:
        what = f"No module named {spec.name!r} in the old code: {found} has no counterpart {expected}"
        if found.endswith(tuple(EXTENSION_SUFFIXES)):
            cure = "it is compiled: pass --against-build COMMAND, which builds the old code in its worktree"
            return ImportError(f"{what}; {cure}", name=spec.name, path=found)
        cure = "if it is generated and not committed, pass --against-build COMMAND, which makes it in the worktree"
        return ModuleNotFoundError(f"{what}; {cure}", name=spec.name, path=found)


def install(redirect: Redirect) -> None:
    """Redirects the imports of this process, and of those that are forked from it."""
    sys.path[:] = [redirect.on_path(path) if isinstance(path, str) else path for path in sys.path]
    for name, module in list(sys.modules.items()):  # what files of site-packages imported as Python started
        if name == "__main__" or type(module) is not ModuleType:  # others answer to any name, and are not of files
            continue
        file, folders = vars(module).get("__file__"), [str(path) for path in vars(module).get("__path__", ())]
        if isinstance(file, str) and redirect.covers(file):
            del sys.modules[name]
        elif any(map(redirect.covers, folders)):
            module.__path__ = [redirect.on_path(path) for path in folders]
    sys.meta_path.insert(0, Finder(redirect))
    importlib.invalidate_caches()


def find_installed() -> Redirect | None:
    """Where imports of this process are redirected; None if they are not."""
    return next((finder.redirect for finder in _install()), None)


def put_first() -> None:
    """Puts the finder before those that have come to stand before it, as pytest's own does; nothing without one."""
    for finder in _install():
        sys.meta_path.remove(finder)
        sys.meta_path.insert(0, finder)


def _install() -> Iterator[Any]:
    return (finder for finder in list(sys.meta_path) if isinstance(finder, Finder))


def _make_spec(spec: ModuleSpec, file: str) -> ModuleSpec:
    """The specification of the same module in another file."""
    # pytest's loader, which rewrites assertions, takes the file from the specification; others hold their own.
    loader = None if spec.loader is None or isinstance(spec.loader, _LOADERS) else spec.loader
    other = importlib.util.spec_from_file_location(spec.name, file, loader=loader)
    assert other is not None  # the file has a suffix of modules, as the one that was found
    if os.path.basename(file) == _INIT and other.submodule_search_locations is None:
        other.submodule_search_locations = [os.path.dirname(file)]
    return other


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))
