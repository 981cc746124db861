"""The only module that uses a private name of cloudpickle, in functions with tests that show what is relied on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType, ModuleType
from typing import Any, TypeAlias

from cloudpickle import cloudpickle

SubmoduleFinder: TypeAlias = Callable[[CodeType, Iterable[Any]], list[ModuleType]]

_FIND = "_find_imported_submodules"


def read_submodule_finder() -> SubmoduleFinder | None:
    """What cloudpickle asks for the submodules that a function's code names; None if it works otherwise.

    It takes the code and what that refers to. cloudpickle has no public way to speed it up.
    """
    finder: SubmoduleFinder | None = getattr(cloudpickle, _FIND, None)
    return finder


def replace_submodule_finder(finder: SubmoduleFinder) -> None:
    """Has cloudpickle ask another one, in the whole process."""
    setattr(cloudpickle, _FIND, finder)
