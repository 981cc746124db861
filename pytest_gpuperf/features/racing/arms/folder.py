"""The temporary folder of one race, and what races that were killed have left."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Self

from pytest_gpuperf.leases.folder import OPENING
from pytest_gpuperf.leases.lock_file import LockFile
from pytest_gpuperf.repository import CannotRace

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
            lock = _open(path)
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
        if os.lstat(path).st_uid != os.geteuid():  # somebody else's, and root could open it
            return False
        lock = _open(path)
    except OSError:  # a link, or somebody else's
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


def _open(folder: Path) -> LockFile:
    """Open the lock in a folder that one user owns.

    Anybody can plant a folder, a link or a pipe of this name in a shared temporary folder. So nothing here follows a
    link, and the file's owner is the folder's.

    Raises:
        OSError: it is anything else.
    """
    directory = os.open(folder, os.O_DIRECTORY | OPENING)
    try:
        descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT | OPENING, 0o600, dir_fd=directory)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.fstat(directory).st_uid:
            os.close(descriptor)
            raise PermissionError(f"{folder / _LOCK} is no plain file of the folder's owner")
    finally:
        os.close(directory)
    return LockFile(descriptor)
