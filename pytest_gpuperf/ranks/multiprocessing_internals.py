"""The only module that uses undocumented names of ``multiprocessing``, each in a function with a test."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import spawn
from typing import Any


def add_to_path_of_children(folders: Callable[[], list[str]]) -> None:
    """Has processes that this one starts by ``spawn`` or ``forkserver`` import from further folders as well.

    Publicly, such a process has the ``sys.path`` of the one that starts it, and nothing else can be told to it before
    it unpickles what it is to do.

    Args:
        folders: returns them; called each time that a process is started.
    """
    prepare = spawn.get_preparation_data

    def with_folders(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        return {**data, "sys_path": [*data.get("sys_path", ()), *folders()]}

    spawn.get_preparation_data = with_folders
