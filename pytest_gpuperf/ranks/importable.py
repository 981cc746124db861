"""Classes that travelled by value, found on a rank by their names, as the standard pickle looks for them.

``dist.all_gather_object`` and ``torch.save`` write a class as its module and its name. A rank may not be able to import
the module of a test. Or it would import a second one, whose class is not the program's.

A module that a rank imports by its name has the program's classes in place of its own. A module that the rank cannot
find has these classes only. Nothing is imported before somebody asks for the module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_classes: dict[str, dict[str, type]] = {}
"""The classes that arrived in this process, by module and name."""
_news: dict[str, dict[str, type]] = {}
"""Those of modules that this process had imported, since the last look."""


def is_named(obj: type) -> bool:
    """Whether the class is what its module has under its name; those of a script have no name elsewhere."""
    module = None if obj.__module__ == "__main__" else sys.modules.get(obj.__module__)
    return module is not None and getattr(module, obj.__qualname__, None) is obj


def arriving(reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a pickler is to write of a class that travels by value, so that it is found by its name where it arrives.

    Args:
        reduced: what cloudpickle writes: a constructor, arguments, state, two empty places, what sets the state.
    """
    make, arguments, state, items, pairs, set_state = reduced
    return make, arguments, (set_state, state), items, pairs, arrived


def arrived(obj: type, state: tuple[Callable[[type, Any], object], Any]) -> None:
    """Sets the state of a class that was unpickled, and keeps it under its name.

    Args:
        obj: the class.
        state: what sets its state, and the state.
    """
    set_state, own = state
    set_state(obj, own)
    _classes.setdefault(obj.__module__, {})[obj.__qualname__] = obj
    module = sys.modules.get(obj.__module__)
    if module is not None:
        if getattr(module, obj.__qualname__, None) is not obj:
            setattr(module, obj.__qualname__, obj)
        _news.setdefault(obj.__module__, {})[obj.__qualname__] = obj


def news() -> dict[str, dict[str, type]]:
    """The classes that arrived since the last call in modules that were imported before, by module and name."""
    found = dict(_news)
    _news.clear()
    return found


def install() -> None:
    """Has this process find the classes that arrive; to be called once, on a rank."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _classes and not _is_parent(name):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((found for one in others if (found := one.find_spec(name, path, target)) is not None), None)
        if spec is None:
            return ModuleSpec(name, _Loader(None), is_package=_is_parent(name))
        if hasattr(spec.loader, "exec_module"):  # a namespace package has no loader
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, own: Loader | None) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._own is None else self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if self._own is not None:
            module.__loader__ = self._own
            if module.__spec__ is not None:
                module.__spec__.loader = self._own
            self._own.exec_module(module)
        vars(module).update(_classes.get(module.__name__, {}))


def _is_parent(name: str) -> bool:
    return any(module.startswith(f"{name}.") for module in _classes)
