"""The only module that uses undocumented names of ``multiprocessing``, each in a function with a test."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def as_child(name: str) -> Iterator[None]:
    """Within the block this process is known to ``multiprocessing`` as one that its parent started.

    Publicly, a process gets its name only as it is started, and its parent never again.

    Args:
        name: of the process, as ``multiprocessing.current_process()`` tells it.
    """
    process: Any = multiprocessing.process  # of which type checkers do not know all
    current, before = multiprocessing.current_process(), process._parent_process
    own_name, parent = current.name, os.getppid()
    sentinel = os.pidfd_open(parent)  # readable when the parent has ended
    try:
        current.name = name
        process._parent_process = process._ParentProcess("MainProcess", parent, sentinel)
        yield
    finally:
        current.name, process._parent_process = own_name, before
        os.close(sentinel)
