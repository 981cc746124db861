"""Lines that processes post for all others to read. Each counts as long as its poster lives and leaves it there."""

from collections.abc import Iterator

from pytest_gpuperf.leases.folder import Folder
from pytest_gpuperf.leases.lock_file import LockFile


class Notice:
    """A line of this process's own: a file that it holds locked."""

    def __init__(self, folder: Folder, name: str, file: LockFile) -> None:
        self.name = name
        self._folder = folder
        self._file = file

    @property
    def is_ours(self) -> bool:
        """Whether this process posted it; a forked child did not."""
        return not self._file.closed

    def remove(self) -> None:
        """Takes it down; in a forked child it does nothing."""
        if self.is_ours:
            self._folder.remove(self.name)
            self._file.close()


class Notices:
    """The notices of one kind, by the ending of their names."""

    def __init__(self, folder: Folder, suffix: str) -> None:
        self._folder = folder
        self._suffix = suffix
        self._dead: set[str] = set()

    def post(self, stem: str, line: str) -> Notice:
        """Posts a line under a name that was never used before.

        Raises:
            LeaseError: Where it cannot be written.
        """
        name = stem + self._suffix
        return Notice(self._folder, name, self._folder.post(name, line))

    def names(self) -> list[str]:
        """The names of all notices, sorted; a name is never used again.

        Raises:
            LeaseError: Where the folder cannot be read.
        """
        return self._folder.names(self._suffix)

    def living(self, before: str | None = None) -> Iterator[tuple[str, str]]:
        """Name and line of each notice whose poster lives, in the order of their names; clears the others away.

        Args:
            before: The name to stop at.

        Raises:
            LeaseError: Where the folder cannot be read.
        """
        names = self.names()
        self._dead.intersection_update(names)
        for name in names:
            if before is not None and name >= before:
                return
            if name in self._dead:
                continue
            line = self._folder.look(name)
            if line is not None:
                yield name, line
            elif not self._folder.remove(name):
                self._dead.add(name)  # another user's, which the sticky folder keeps; names are never used again
