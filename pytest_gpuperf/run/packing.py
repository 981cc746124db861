"""Programs on their way to the ranks: which modules travel by value, and what is said of what cannot be pickled."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.cython_internals import is_shared_by_cython
from pytest_gpuperf.ranks.scene import Scene
from pytest_gpuperf.ranks.stubs import Stubs
from pytest_gpuperf.run.pytest_internals import rewrites_assertions

_OWN = __name__.partition(".")[0]  # which all nodes have in the same version
_INSTALLED = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})


class Packing:
    """Pickles what ranks are to call. What lies beside the run's tests travels by value."""

    def __init__(self, rootpath: Path, lacks: Callable[[str], bool] | None = None) -> None:
        """Knows of no tests yet.

        Args:
            rootpath: pytest's rootdir.
            lacks: whether a node with ranks lacks an installed package; None if ranks import what this process does.
        """
        self._lacks = lacks
        self._root = os.path.join(rootpath, "")
        # Suites that a package brings lie among what is installed, and their root with them.
        self._installed = () if self._root.startswith(_INSTALLED) else _INSTALLED
        self._directories: set[str] = set()
        self._modules: tuple[int, tuple[ModuleType, ...]] = (-1, ())
        self._stubs = Stubs({}, {})
        self._files: dict[str, str] = {}
        """The sources of the modules, by their names."""

    def note_collected(self, items: Sequence[pytest.Item], config: pytest.Config) -> None:
        """Takes note of where the test modules lie: what lies beside them travels to the ranks by value."""
        self._directories = {str(item.path.parent) for item in items}
        for plugin in config.pluginmanager.get_plugins():
            file = getattr(plugin, "__file__", None)
            if file is not None and Path(file).name == "conftest.py":
                self._directories.add(str(Path(file).parent))

    def pack(
        self, call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], program: Callable[..., Any]
    ) -> Parcel:
        """A call for the ranks: entry, arguments and keyword arguments.

        Args:
            call: ``entry(context, *args, **kwargs)``.
            program: the user's, which is named where it cannot be pickled.

        Raises:
            Exception: whatever an object that cannot be pickled raises, with a note that names the program.
        """
        __tracebackhide__ = True
        entry, args, kwargs = call
        modules = self._list_by_value()
        with _name_if_it_cannot_be_sent(program):
            return payload.dumps((self._stubs.before(entry), args, kwargs), by_value=modules)

    def list_packages(self, program: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Set[str]:
        """Return the names of packages that a program may use itself, which was packed before."""
        return payload.list_named_packages((program, args, kwargs), by_value=self._list_by_value())

    def scene(self) -> Scene | None:
        """Return what a program finds of this process's state; None on a cluster, whose nodes have other files."""
        return Scene.now(self._files) if self._lacks is None else None

    def travels(self, module: ModuleType) -> bool:
        """Whether the module travels by value."""
        return module in self._list_by_value()

    def _list_by_value(self) -> tuple[ModuleType, ...]:
        count, modules = self._modules
        if count != len(sys.modules):
            modules = tuple(module for module in list(sys.modules.values()) if self._travels(module))
            self._modules = len(sys.modules), modules
            self._stubs = _make_stubs(modules)
            self._files = {module.__name__: file for module in modules if (file := module.__file__)}
        return modules

    def _travels(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None) or ""
        if os.path.dirname(file) in self._directories:
            return True
        # Under --import-mode=importlib a test's package may be on no path that a rank could import it from.
        # What is installed can be imported, and a virtual environment may well lie below the rootdir.
        if not file.startswith(self._root) or file.startswith(self._installed) or module.__name__ == "__main__":
            return False
        package = module.__name__.partition(".")[0]
        if self._lacks is not None:
            return package != _OWN and self._lacks(package)
        return not _is_importable(package)


def _make_stubs(by_value: tuple[ModuleType, ...]) -> Stubs:
    contents: dict[str, dict[str, Any]] = {}
    absent: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        if not _is_put_in_by_hand(name, module):
            continue
        values = {key: value for key, value in _read_namespace(module).items() if not isinstance(value, ModuleType)}
        try:
            if not isinstance(module, ModuleType):
                raise TypeError(f"it is a {type(module).__qualname__}")
            payload.dumps(values, by_value)
        except Exception as error:  # whatever an object that cannot be pickled raises
            absent[name] = f"{type(error).__name__}: {error}"
        else:
            contents[name] = values
    return Stubs(contents, absent)


def _is_put_in_by_hand(name: str, module: object) -> bool:
    # An import sets a spec; scripts, and modules that packages make within themselves, have none either.
    package = name.partition(".")[0]
    if isinstance(getattr(module, "__spec__", None), ModuleSpec) or getattr(module, "__file__", None) or module is None:
        return False
    if package.startswith("__") or is_shared_by_cython(package):
        return False
    return package not in sys.stdlib_module_names and not _is_importable(package)


def _read_namespace(module: object) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("__")}


def _is_importable(package: str) -> bool:
    # By whatever finder, since editable installs bring their own; importlib.util.find_spec would be content
    # with what is in sys.modules. pytest's finder rewrites assertions and asks the others.
    finders = [finder for finder in sys.meta_path if not rewrites_assertions(finder)]
    return any(finder.find_spec(package, None) is not None for finder in finders)


def name_program(program: Callable[..., Any]) -> str:
    """A program's name with its module, as reports tell it."""
    module = getattr(program, "__module__", None)
    name = getattr(program, "__qualname__", None) or repr(program)
    return f"{module}:{name}" if module else name


@contextlib.contextmanager
def _name_if_it_cannot_be_sent(program: Callable[..., Any]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of whatever type an object that cannot be pickled raises
        error.add_note(
            f"raised while {name_program(program)} was pickled for the ranks, with its arguments and what it closes "
            "over: have the program make what cannot be pickled"
        )
        raise
