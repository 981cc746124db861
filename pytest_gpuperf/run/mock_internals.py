"""The only module that uses a private name of ``unittest.mock``, in a function with a test of what is relied on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


class LivePatches:
    """The patches of ``unittest.mock`` that were entered and not left since ``watch``.

    Publicly, nobody can ask for them.
    """

    def __init__(self) -> None:
        self._live: list[Any] = []
        self._undo: Callable[[], None] | None = None

    def watch(self) -> None:
        """Notes patches from now on, if anybody has imported ``unittest.mock``; needs to be called once."""
        mock = sys.modules.get("unittest.mock")
        if self._undo is not None or mock is None:
            return
        patch = mock._patch
        enter, leave, live = patch.__enter__, patch.__exit__, self._live

        def enter_patch(self: Any) -> Any:
            value = enter(self)
            live.append(self)
            return value

        def left(self: Any, *error: Any) -> Any:
            with contextlib.suppress(ValueError):  # entered before anybody watched, or not at all
                live.remove(self)
            return leave(self, *error)

        def undo() -> None:
            patch.__enter__, patch.__exit__ = enter, leave

        patch.__enter__, patch.__exit__ = enter_patch, left
        self._undo = undo

    def targets(self) -> Iterator[tuple[Any, str]]:
        """What is patched now: an object, and the name of its attribute."""
        yield from ((patch.target, patch.attribute) for patch in list(self._live))

    def close(self) -> None:
        """Watches no more."""
        if self._undo is not None:
            self._undo()
            self._undo = None
