"""Modules that somebody put into ``sys.modules`` by hand, as a conftest.py does for a package that is not installed.

A rank installs them before it unpickles the program, whose modules may import them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class Stubs:
    """The stubs of the pytest process."""

    contents: Mapping[str, Mapping[str, Any]]
    """The names in each module, by the module's name."""
    absent: Mapping[str, str]
    """Why a module cannot be sent, by its name."""

    def before(self, entry: Callable[..., Any]) -> Callable[..., Any]:
        """An entry that, as it is unpickled, installs the modules; what follows it in the pickle finds them."""
        return _Preceded(self, entry) if self.contents or self.absent else entry


class _Preceded:
    def __init__(self, stubs: Stubs, entry: Callable[..., Any]) -> None:
        self._stubs = stubs
        self._entry = entry

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("this entry is called on ranks only")

    def __reduce__(self) -> tuple[Any, ...]:
        return return_entry, (_Installed(self._stubs), self._entry)  # unpickled in this order


class _Installed:
    def __init__(self, stubs: Stubs) -> None:
        self._stubs = stubs

    def __reduce__(self) -> tuple[Any, ...]:
        contents = dict(self._stubs.contents)
        return install, (_Names(list(contents)), contents, dict(self._stubs.absent))


class _Names:
    def __init__(self, names: list[str]) -> None:
        self._names = names

    def __reduce__(self) -> tuple[Any, ...]:
        return make, (self._names,)


def make(names: list[str]) -> list[str]:
    """Puts empty modules into this process's ``sys.modules``, where nothing else is; returns which it made.

    Their contents come later: functions in them may refer to the modules.
    """
    made = [name for name in names if name not in sys.modules]
    for name in made:
        sys.modules[name] = ModuleType(name, "A module that the pytest process has put in place by hand.")
    for name in made:
        parent, _, own = name.rpartition(".")
        if parent in names:
            setattr(sys.modules[parent], own, sys.modules[name])
    return made


def install(made: list[str], contents: Mapping[str, Mapping[str, Any]], absent: Mapping[str, str]) -> None:
    """Fills the modules that were made.

    Args:
        made: their names.
        contents: names in each module.
        absent: why modules cannot be had here; importing one of these raises an error that says so.
    """
    for name in made:
        vars(sys.modules[name]).update(contents[name])
    if absent and not any(isinstance(finder, _Absent) for finder in sys.meta_path):
        sys.meta_path.append(_Absent(absent))  # behind all that may find the module itself


def return_entry(installed: None, entry: Any) -> Any:
    """The entry, which was unpickled behind the modules."""
    return entry


class _Absent(MetaPathFinder):
    def __init__(self, reasons: Mapping[str, str]) -> None:
        self._reasons = dict(reasons)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        reason = self._reasons.get(name)
        if reason is not None:
            raise ModuleNotFoundError(
                f"no module named {name!r} on this rank: the pytest process has put one into sys.modules by hand, and "
                f"it cannot be pickled ({reason}). Make it a types.ModuleType that holds functions, classes and values",
                name=name,
            )
