"""Which code of a folder a process has loaded. Runs on ranks, and in the pytest process of an arm."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

_DELETED = " (deleted)"  # proc(5), /proc/pid/maps: the file has been removed or replaced since


def list_loaded_code(context: object, folder: str) -> list[str]:
    """Real paths of all files in the folder that this process has as modules, or mapped into memory as code.

    Args:
        context: of the rank; not used, but every program on ranks takes one.
        folder: a real path.
    """
    inside = os.path.join(folder, "")
    folders: dict[str, str] = {}  # to resolve the same few hundred folders for thousands of files takes too long
    found = set()
    for file in (*_iterate_modules(), *_list_mapped()):
        parent, name = os.path.split(file)
        if parent not in folders:
            folders[parent] = os.path.realpath(parent)
        path = os.path.join(folders[parent], name)
        if os.path.islink(path) and path.startswith(inside):
            path = os.path.realpath(path)
        if path.startswith(inside):
            found.add(path)
    return sorted(found)


def _iterate_modules() -> Iterator[str]:
    for module in list(sys.modules.values()):
        try:
            file = vars(module).get("__file__")
        except TypeError:  # what somebody put in a module's place need not have a dictionary
            continue
        if isinstance(file, str) and os.path.isabs(file):
            yield file


def _list_mapped() -> Iterator[str]:
    # Only what can be executed: a file of data that is mapped is no code.
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and "x" in fields[1] and fields[5].startswith("/"):
            yield fields[5].removesuffix(_DELETED)
