"""An open file, locked by the kernel, that keeps one line about who locked it."""

import fcntl
import os

LINE_BYTES = 65_536  # what is read of a file that anybody may have written


class LockFile:
    """A file whose lock ends with the process that took it, however that ends.

    flock belongs to the open file: two openings in one process exclude each other too, and closing another one of the
    same file frees nothing, as it would with locks of fcntl.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @property
    def descriptor(self) -> int:
        """The file's descriptor.

        Raises:
            ValueError: After close.
        """
        if self._descriptor is None:
            raise ValueError("the file is closed: open it again")
        return self._descriptor

    @property
    def closed(self) -> bool:
        """Whether the file was closed or abandoned."""
        return self._descriptor is None

    def try_lock(self, *, shared: bool = False) -> bool:
        """Locks the file and says True, or says False at once where another has it.

        Args:
            shared: Whether others may lock the file shared as well; what a mere look takes.
        """
        try:
            fcntl.flock(self.descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def read(self) -> str:
        """The file's first line; without an end, what there is of it."""
        return os.pread(self.descriptor, LINE_BYTES, 0).decode("utf-8", "replace").partition("\n")[0]

    def write(self, line: str) -> None:
        """Replaces what the file says."""
        # Written, then cut: others read without a lock, and find the old line or the new one, never an empty file.
        data = f"{line}\n".encode()
        os.pwrite(self.descriptor, data, 0)
        os.ftruncate(self.descriptor, len(data))

    def clear(self) -> None:
        """Empties the file."""
        os.ftruncate(self.descriptor, 0)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether this file is still the one of that name."""
        try:
            return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Unlocks and closes the file; a second time it does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # Before closing: a process forked from this one by other means than Python's may share the open file.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def abandon(self) -> None:
        """Closes the file without unlocking it: for a forked child, whose parent keeps the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
