"""What of the pytest process's state each run finds on its ranks: working directory, module path, and test modules.

Ranks are warm, and have what the pytest process had when they were forked. A test may have changed it since, as
``monkeypatch.chdir`` and ``monkeypatch.syspath_prepend`` do.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Scene:
    """The state of a process."""

    cwd: str = ""
    """Empty if it is not known, or was removed."""
    path: tuple[str, ...] = ()
    """The entries of ``sys.path``; empty if they are not known."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The source of each module that travels by value, by the module's name."""

    @classmethod
    def now(cls, files: Mapping[str, str]) -> Scene:
        """Return that of this process.

        Args:
            files: as in the field.
        """
        return cls(read_working_directory(), tuple(read_module_path()), files)

    @contextlib.contextmanager
    def set_over(self, usual: Scene) -> Iterator[None]:
        """Has this process's directory and path differ from the usual ones, as far as these do, within the block.

        Args:
            usual: what the process had when it started. Where it has not changed, a program's own change stays.
        """
        moves = self.cwd not in ("", usual.cwd)
        finds = self.path not in ((), usual.path)
        path, cwd = list(sys.path), read_working_directory() if moves else ""
        try:
            if finds:
                sys.path[:] = self.path
                importlib.invalidate_caches()  # as the import system asks of who changes it
            if moves:
                with contextlib.suppress(OSError):  # another test may have removed it by now
                    os.chdir(self.cwd)
            yield
        finally:
            if finds:
                sys.path[:] = path
            if moves and cwd:
                with contextlib.suppress(OSError):
                    os.chdir(cwd)


def read_module_path() -> list[str]:
    """Return ``sys.path``; the import system takes no notice of what is no string."""
    return [path for path in sys.path if isinstance(path, str)]


def read_working_directory() -> str:
    """Return the working directory; empty if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
