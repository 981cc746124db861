"""What programs leave in modules that a rank has imported: attributes that are new or bound to another object.

Runs in rank processes. It does not look at Python's own modules, nor at torch, numpy, pytest and what these import. A
module's state is known from the moment before the first program that could change it. If a program itself imports a
module, only what is a singleton by its name is seen. Modules that travel by value are not looked at: each run finds
them as its program brings them (``importable``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from pytest_gpuperf.ranks.accelerate_internals import SHARED
from pytest_gpuperf.ranks.importable import is_home

_OF_TORCH = frozenset(
    {"networkx", "sympy", "mpmath", "jinja2", "markupsafe", "triton", "filelock", "fsspec", "setuptools", "psutil"}
)
"""What torch needs and imports when it first does, psutil if it is there; these fill tables of their own."""
_MOST = 5  # names that a report has of one test
_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Owner:
    """A module or a class, and its attributes before programs could change them."""

    label: str
    owner: Any
    before: Mapping[str, Any]
    bindings: list[Any]
    """The names of all its attributes, then the identities of their values; empty if the content of one matters."""

    @classmethod
    def of(cls, label: str, owner: Any) -> _Owner:
        before = _read_values(owner)
        return cls(label, owner, before, [] if SHARED in before else _list_bindings(owner))

    def changes(self) -> Iterator[str]:
        """The names that are bound to something else now, and those that are new or gone."""
        # Nearly all owners stay as they were, and thousands are asked after each test. What ``before`` holds is alive,
        # so that no other value of the same name has its identity.
        if not self.bindings or self.bindings != _list_bindings(self.owner):
            yield from _iterate_changes(self.label, self.owner, self.before)


class ModuleState:
    """The state of a process's modules."""

    def __init__(self) -> None:
        self._brought = {name.partition(".")[0] for name in sys.modules} | set(sys.stdlib_module_names) | _OF_TORCH
        self._known: dict[str, list[_Owner]] = {}
        self._looked_at = 0
        self._imported: list[str] = []
        self._names: list[str] = []
        """Names of the modules to look at, as long as no other module is imported."""

    def note(self) -> None:
        """Takes note of modules that were imported since; a program is about to run."""
        if len(sys.modules) == self._looked_at:
            return
        for name, module in self._list_watched():
            if name not in self._known:
                self._known[name] = [_Owner.of(label, owner) for label, owner in owners(name, module)]
        self._looked_at = len(sys.modules)

    def list_changes(self) -> list[str]:
        """What programs changed since ``note``, in words; empty if nothing."""
        found = []
        for name, module in self._list_watched():
            known = self._known.get(name)
            if known is None:
                found += [
                    f"{label}.{SHARED}" for label, owner in owners(name, module) if _read_values(owner).get(SHARED)
                ]
            elif sys.modules.get(name) is module:
                found += [path for owner in known for path in owner.changes()]
        if not found:
            return []
        more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
        return [f"attributes of modules: {', '.join(found[:_MOST])}{more}"]

    def _list_watched(self) -> Iterator[tuple[str, ModuleType]]:
        imported = list(sys.modules)
        if imported != self._imported:
            self._imported = imported
            self._names = [name for name in imported if name.partition(".")[0] not in self._brought]
        for name in self._names:
            module = sys.modules.get(name)
            if type(module) is ModuleType and not is_home(name):
                yield name, module


def owners(name: str, module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What keeps the state of a module: itself and its classes, each by its full name."""
    yield name, module
    for value in list(vars(module).values()):
        if type(value) is type and value.__module__ == name:
            yield f"{name}.{value.__qualname__}", value


def _read_values(owner: Any) -> dict[str, Any]:
    values = {name: value for name, value in vars(owner).items() if not name.startswith("__")}
    if isinstance(values.get(SHARED), dict):
        values[SHARED] = dict(values[SHARED])  # its content is what matters, and a copy of it can be compared
    return values


def _list_bindings(owner: Any) -> list[Any]:
    attributes = dict(vars(owner))
    return [*attributes, *map(id, attributes.values())]


def _iterate_changes(label: str, owner: Any, before: Mapping[str, Any]) -> Iterator[str]:
    now = _read_values(owner)
    lazy = isinstance(owner, ModuleType) and "__getattr__" in vars(owner)
    for name, value in now.items():
        old = before.get(name, _MISSING)
        if name == SHARED and isinstance(value, dict):
            changed = value.keys() != (old if isinstance(old, dict) else {}).keys()
        else:
            # A submodule that is imported becomes an attribute; so does what a module imports when it is first asked.
            loaded = old is _MISSING and (lazy or isinstance(value, ModuleType | FunctionType | type))
            changed = old is not value and not loaded and not isinstance(value, ModuleType)
        if changed:
            yield f"{label}.{name}"
    yield from (f"{label}.{name}" for name in before.keys() - now.keys() if not isinstance(before[name], ModuleType))
