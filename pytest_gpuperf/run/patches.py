"""Attributes that a test has patched in the pytest process, and that programs on ranks have as they were."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import pytest

from pytest_gpuperf.run.mock_internals import LivePatches
from pytest_gpuperf.run.pytest_internals import list_patched_attributes

_NOT_OF_PROGRAMS = frozenset({"pytest", "pytest_gpuperf"})


class PatchWarning(UserWarning):
    """A test ran programs while it had patched something that ranks, which are other processes, have as it was."""

    __module__ = "pytest_gpuperf"  # where users import it from, and filter it by


class Patches:
    """What tests of this process have patched."""

    def __init__(self, travels: Callable[[ModuleType], bool]) -> None:
        """Watches nothing yet.

        Args:
            travels: whether a module reaches the ranks by value, and so with what was patched in it.
        """
        self._travels = travels
        self._mocks = LivePatches()

    def begin(self) -> None:
        """A test that uses ranks begins."""
        self._mocks.watch()

    def missing(self, item: pytest.Item) -> list[str]:
        """Return the names of what is patched now, by ``monkeypatch`` or ``unittest.mock``, and not on the ranks.

        Args:
            item: the test that runs.
        """
        found = dict.fromkeys(self._iterate_missing([*list_patched_attributes(item), *self._mocks.targets()]))
        return list(found)

    def close(self) -> None:
        """Watches no more."""
        self._mocks.close()

    def _iterate_missing(self, targets: Iterable[tuple[Any, str]]) -> Iterator[str]:
        for owner, name in targets:
            if isinstance(owner, ModuleType):
                module, label = owner, owner.__name__
            elif isinstance(owner, type) and owner.__module__ in sys.modules:
                module, label = sys.modules[owner.__module__], f"{owner.__module__}.{owner.__qualname__}"
            else:
                continue  # an object, which travels as it is if a program refers to it
            if module.__name__.lstrip("_").partition(".")[0] not in _NOT_OF_PROGRAMS and not self._travels(module):
                yield f"{label}.{name}"


def patch_warning(test: str, names: list[str]) -> PatchWarning:
    """Return the warning for a test that runs programs.

    Args:
        test: its node id.
        names: what is patched.
    """
    them = "it" if len(names) == 1 else "them"
    return PatchWarning(
        f"{test} runs a program while {', '.join(names)} {'is' if len(names) == 1 else 'are'} patched in the pytest "
        f"process: ranks are other processes and have {them} as before. Patch {them} in the program, with pytest."
        "MonkeyPatch.context() or unittest.mock.patch; if programs need not see the patch, ignore "
        "pytest_gpuperf.PatchWarning"
    )
