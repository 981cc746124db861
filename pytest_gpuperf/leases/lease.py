"""What an owner holds."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from types import TracebackType

from pytest_gpuperf.leases.lock_file import LockFile
from pytest_gpuperf.leases.memory import RETURN_SECONDS, UsedMemory, await_return


class Lease:
    """Resources that are this process's alone until release, or its end.

    A lease that is dropped without release stays in force: what runs on the resources may still be there.
    """

    def __init__(
        self,
        files: Mapping[str, LockFile],
        used_before: Mapping[str, int],
        used: UsedMemory | None,
        unreturned: tuple[str, ...],
    ) -> None:
        self.resources: tuple[str, ...] = tuple(files)
        """In the order of the candidates."""
        self.unreturned = unreturned
        """GPUs whose last owner died, and whose memory was not back in time: they may be short of memory."""
        self._files = dict(files)
        self._used_before = used_before
        self._used = used

    def await_memory(self, but: Collection[str] = (), timeout: float = RETURN_SECONDS) -> tuple[str, ...]:
        """Waits until the GPUs' used memory is about what it was when they were leased: after ranks were killed.

        Args:
            but: GPUs whose memory is in use for good reason.
            timeout: Seconds for all GPUs together.

        Returns:
            The GPUs whose memory did not come back; none where nobody measures.

        Raises:
            HardwareError: Where a GPU does not tell its memory.
        """
        due = {name: used for name, used in self._used_before.items() if name not in but}
        return () if self._used is None else await_return(due, self._used, timeout)

    def release(self) -> None:
        """Lets the resources go; a second time it does nothing, and in a forked child it never does anything."""
        with ExitStack() as releasing:  # one that cannot be cleared keeps no other locked
            while self._files:
                _, file = self._files.popitem()
                if not file.closed:
                    releasing.callback(file.close)
                    releasing.callback(file.clear)  # a line that is left behind tells the next owner that this one died

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
