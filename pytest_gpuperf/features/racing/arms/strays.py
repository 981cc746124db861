"""The files of the present code that a rank of the old code has loaded. Runs on ranks."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuperf.features.racing.arms.loaded import list_loaded_code
from pytest_gpuperf.features.racing.arms.redirect import Redirect, find_installed


def list_loaded_strays(context: object, folder: str, old: bool) -> list[str]:
    """Files of the present code that this process has loaded; none in the arm of the present code, which looks alike.

    Args:
        context: of the rank; not used, but every program on ranks takes one.
        folder: the repository of the run; a real path. On a node the clone may be elsewhere: then both count.
        old: whether the arm is that of the old code.
    """
    files = list_loaded_code(context, folder)
    redirect = find_installed()
    if redirect is None:
        return files if old else []
    if redirect.repository == folder:
        return redirect.list_strays(files)
    there = Redirect.of(Path(folder), Path(redirect.worktree))
    return [*there.list_strays(files), *redirect.list_strays(list_loaded_code(context, redirect.repository))]
