"""The temporary folder of one race, and what races that were killed have left."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Self

from pytest_gpuperf.arms.arm import CannotRace
from pytest_gpuperf.leases.lock_file import LockFile

_PREFIX = "gpuperf-race-"
_OWNER = re.compile(rf"{_PREFIX}(\d+)-")
_LOCK = "owner"


class RaceFolder:
    """A folder in the temporary folder that is this process's own."""

    def __init__(self, path: Path, lock: LockFile) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def new(cls) -> Self:
        """A new, empty one.

        Raises:
            CannotRace: the temporary folder cannot be written.
        """
        try:
            path = Path(os.path.realpath(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")))
            lock = _opened(path)
        except OSError as error:
            raise CannotRace(
                f"a race needs a temporary folder, and none can be made in {tempfile.gettempdir()}: got {error}: set "
                "TMPDIR to a folder with free space"
            ) from error
        lock.try_lock()
        return cls(path, lock)

    def close(self) -> None:
        """Removes it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_leftovers() -> bool:
    """Removes the folders of races whose processes were killed; returns whether there were any."""
    folders = [path for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*") if _is_left(path)]
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)
    return bool(folders)


def _is_left(path: Path) -> bool:
    owner = _OWNER.match(path.name)
    if owner is None or _lives(int(owner[1])):
        return False
    try:
        lock = _opened(path)
    except OSError:  # somebody else's
        return False
    try:
        return lock.try_lock()  # another container's processes have numbers of their own: the lock tells
    finally:
        lock.close()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _opened(folder: Path) -> LockFile:
    return LockFile(os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
