"""Modules whose functions and classes travelled by value: each exists once on a rank, under its own name.

``dist.all_gather_object``, ``torch.save`` and the workers of a loader write a function or a class as its module and its
name. On a rank, all that arrives of such a module shares one namespace. If somebody imports the module by its name, it
is executed in this namespace, and what has arrived or was set there by then stays. So ``import`` finds the very
functions, classes and globals of the program.

Nothing is executed before somebody asks for the module. Each run begins with the names that its own program brings, and
with those that the module had when it was executed: what an earlier program set is gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import FunctionType, ModuleType
from typing import Any

from pytest_gpuperf.ranks.multiprocessing_internals import add_to_path_of_children

NOT_SENT = frozenset({"__builtins__", "__spec__", "__loader__", "__cached__"})
"""Attributes of a module that each process makes itself."""


@dataclass(slots=True)
class _Home:
    """The namespace that has what arrived of a module."""

    module: ModuleType
    executed: dict[str, Any] | None = None
    """The names that its file gave it; None before it was executed."""
    nested: dict[str, type] = field(default_factory=dict)
    """Classes that arrived and stand in others, by their names with dots."""

    def put_nested(self) -> None:
        """Puts the nested classes into those in which they stand, if these are there."""
        for name, cls in self.nested.items():
            *outer, own = name.split(".")
            owner = find_within(self.module, outer)
            if owner is not None and getattr(owner, own, None) is not cls:
                setattr(owner, own, cls)

    def begin(self) -> None:
        """Has it hold what its file gave it."""
        assert self.executed is not None
        names = vars(self.module)
        for name in names.keys() - self.executed.keys():
            del names[name]
        names.update(self.executed)
        self.nested.clear()


@dataclass(slots=True)
class _Homes:
    """The namespaces of this process."""

    known: dict[str, _Home] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """The sources of modules that travel by value, whether or not something of them has arrived."""
    parents: set[str] = field(default_factory=set)
    """The packages of all of them, by name."""
    installed: bool = False

    def begin(self, files: Mapping[str, str]) -> None:
        """Forgets what has arrived; the names of files that were executed stay as these gave them."""
        for name, home in list(self.known.items()):
            if home.executed is None:
                del self.known[name]
            else:
                home.begin()
        if files != self.files:
            self.files = files
            self.parents = {parent for name in (*files, *self.known) for parent in _list_parents(name)}

    def of(self, name: str, file: str | None) -> _Home:
        """The namespace of a module; a new one if there is none."""
        home = self.known.get(name)
        if home is None:
            there = sys.modules.get(name)
            if there is not None and _is_from(there, file or self.files.get(name)):
                home = _Home(there, dict(vars(there)))
            else:
                home = _Home(ModuleType(name))
            self.known[name] = home
            self.parents.update(_list_parents(name))
        return home


_homes = _Homes()


def begin(files: Mapping[str, str]) -> None:
    """A run begins, and nothing has arrived for it.

    Args:
        files: the source of each module that travels by value, by the module's name.
    """
    _homes.begin(files)


def is_home(name: str) -> bool:
    """Whether the module is one of which something has arrived in this process."""
    return name in _homes.known


def install() -> None:
    """Has this process find what arrives; to be called once, on a rank."""
    _homes.installed = True
    sys.meta_path.insert(0, _Finder())
    add_to_path_of_children(_list_roots)


def _list_roots() -> list[str]:
    # From there another process can import the modules. Under --import-mode=importlib they are on no path.
    found: list[str] = []
    for name, file in _homes.files.items():
        path = file.removesuffix("/__init__.py").removesuffix(".py")
        root = path.removesuffix("/" + name.replace(".", "/"))
        if root != path and root not in (*sys.path, *found):
            found.append(root)
    return found


class Departing:
    """Has a pickler write functions, classes and modules that travel by value so that they share a namespace."""

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        """Knows the modules.

        Args:
            modules: those that travel by value, by name.
        """
        self._modules = modules
        self._namespaces: dict[str, _Namespace] = {}

    def reduce_function(self, function: FunctionType, reduced: Any) -> Any:
        """Return what the pickler is to write of a function.

        Args:
            function: one that travels by value.
            reduced: what cloudpickle writes: a constructor, arguments, state, two empty places, what sets the state.
        """
        name = function.__globals__.get("__name__", "")
        module = self._modules.get(name)
        if module is None or vars(module) is not function.__globals__:
            return reduced
        make, (code, base, *others), state, items, pairs, set_state = reduced
        namespace = self._namespaces.setdefault(name, _Namespace(name, base))
        arguments = (code, namespace, *others)
        if getattr(module, function.__qualname__, None) is not function:
            return make, arguments, state, items, pairs, set_state
        return reduce_by_name((make, arguments, state, items, pairs, set_state), function.__qualname__)

    def reduce_module(self, module: ModuleType) -> Any:
        """Return what the pickler is to write of a module; None for one that does not travel by value."""
        if self._modules.get(module.__name__) is not module:
            return None
        names = {name: value for name, value in vars(module).items() if name not in NOT_SENT}
        return find_arrived_module, (module.__name__, getattr(module, "__file__", None)), names, None, None, fill


class _Namespace:
    def __init__(self, name: str, base: dict[str, Any]) -> None:
        self._name = name
        self._base = base

    def __reduce__(self) -> tuple[Any, ...]:
        return namespace, (self._name, self._base)


def is_named(obj: type) -> bool:
    """Whether the class is what its module has under its name; those of a script have no name elsewhere."""
    module = None if obj.__module__ == "__main__" else sys.modules.get(obj.__module__)
    return module is not None and find_within(module, obj.__qualname__.split(".")) is obj


def reduce_by_name(reduced: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Return what a pickler is to write of a class or a function, so that it arrives under its name.

    Args:
        reduced: what cloudpickle writes: a constructor, arguments, state, two empty places, what sets the state.
        name: in its module, with dots for a class that stands in another one.
    """
    make, arguments, state, items, pairs, set_state = reduced
    return make, arguments, (set_state, state, name), items, pairs, set_arrived


def namespace(name: str, base: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of functions that arrive from a module.

    Args:
        name: of the module.
        base: its names that functions have whether they use them or not.
    """
    if not _homes.installed:
        return base  # what a rank returns must change nothing in the pytest process
    names = vars(_homes.of(name, base.get("__file__")).module)
    names.update(base)
    return names


def find_arrived_module(name: str, file: str | None) -> ModuleType:
    """Return the module that arrives, with what has arrived of it."""
    return _homes.of(name, file).module if _homes.installed else ModuleType(name)


def fill(module: ModuleType, names: Mapping[str, Any]) -> None:
    """Gives a module that arrived the names that it had where it comes from."""
    vars(module).update(names)


def set_arrived(obj: Any, state: tuple[Callable[[Any, Any], object], Any, str]) -> None:
    """Sets the state of a function or a class that was unpickled, and keeps it under its name.

    Args:
        obj: the function or the class.
        state: what sets its state, the state, and the name.
    """
    set_state, own, name = state
    set_state(obj, own)
    if not _homes.installed:
        return
    home = _homes.of(obj.__module__, None)
    if "." in name:
        obj.__qualname__ = name  # which cloudpickle leaves out
        home.nested[name] = obj
        home.put_nested()
    else:
        setattr(home.module, name, obj)


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        home = _homes.known.get(name)
        if home is None and name not in _homes.files and name not in _homes.parents:
            return None
        spec = _find_by_file(name) or self._find_by_others(name, path, target)
        if spec is None:
            spec = ModuleSpec(name, _Loader(None, home), is_package=name in _homes.parents)
        elif home is not None and hasattr(spec.loader, "exec_module"):  # a namespace package has no loader
            spec.loader = _Loader(spec.loader, home)
        return spec

    def _find_by_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        others = (finder for finder in sys.meta_path if finder is not self)
        return next((found for one in others if (found := one.find_spec(name, path, target)) is not None), None)


def _find_by_file(name: str) -> ModuleSpec | None:
    file = _homes.files.get(name)
    if file is None or not os.path.exists(file):
        return None
    folder, own = os.path.split(file)
    return spec_from_file_location(name, file, submodule_search_locations=[folder] if own == "__init__.py" else None)


class _Loader(Loader):
    """Executes a module in the namespace that has what arrived of it."""

    def __init__(self, own: Loader | None, home: _Home | None) -> None:
        self._own = own
        self._home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._home is None else self._home.module

    def exec_module(self, module: ModuleType) -> None:
        names = vars(module)
        again = self._home is not None and self._home.executed is not None  # importlib.reload
        set_before = {name: value for name, value in names.items() if not (again or name.startswith("__"))}
        executed = {name: value for name, value in names.items() if name not in set_before}
        try:
            if self._own is not None:
                module.__loader__ = self._own
                if module.__spec__ is not None:
                    module.__spec__.loader = self._own
                self._own.exec_module(module)
                executed = dict(names)
        finally:
            names.update(set_before)
        if self._home is not None and not again:
            self._home.executed = executed
            self._home.put_nested()


def _list_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def find_within(obj: Any, names: Iterable[str]) -> Any:
    """Returns an attribute of an attribute of an object, and so on; None if it has none."""
    for name in names:
        obj = getattr(obj, name, None)
    return obj


def _is_from(module: ModuleType, file: str | None) -> bool:
    own = getattr(module, "__file__", None)
    return file is None or own == file or (own is not None and os.path.realpath(own) == os.path.realpath(file))
