"""What a process has been given: resources alone, or GPUs that it shares."""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pytest_gpuperf.leases.lock_file import LockFile
from pytest_gpuperf.leases.memory import RETURN_SECONDS, UsedMemory, await_return


class Grant:
    """Resources that this process may use until release, or its end."""

    def __init__(
        self,
        resources: tuple[str, ...],
        used_before: Mapping[str, int],
        used: UsedMemory | None,
        unreturned: tuple[str, ...],
    ) -> None:
        self.resources = resources
        """In the order of the candidates."""
        self.unreturned = unreturned
        """GPUs whose memory was not back in time after ranks had ended: they may be short of memory."""
        self._used_before = used_before
        self._used = used

    def await_memory(self, but: Collection[str] = (), timeout: float = RETURN_SECONDS) -> tuple[str, ...]:
        """Waits until the GPUs' used memory is about what it was before: after ranks were killed.

        Args:
            but: GPUs whose memory is in use for good reason.
            timeout: Seconds for all GPUs together.

        Returns:
            The GPUs whose memory did not come back; none where nobody measures.

        Raises:
            HardwareError: Where a GPU does not tell its memory.
        """
        due = {name: used for name, used in self._used_before.items() if name not in but}
        return () if self._used is None else await_return(due, self._used, timeout, self._list_others)

    def release(self) -> None:
        """Lets the resources go; a second time it does nothing, and in a forked child it never does anything."""
        raise NotImplementedError

    def _list_others(self) -> Collection[str]:
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class Lease(Grant):
    """Resources that are this process's alone.

    A lease that is dropped without release stays in force: what runs on the resources may still be there.
    """

    def __init__(
        self,
        files: Mapping[str, LockFile],
        used_before: Mapping[str, int],
        used: UsedMemory | None,
        unreturned: tuple[str, ...],
    ) -> None:
        super().__init__(tuple(files), used_before, used, unreturned)
        self._files = dict(files)

    def release(self) -> None:
        """Lets the resources go; a second time it does nothing, and in a forked child it never does anything."""
        with ExitStack() as releasing:  # one that cannot be cleared keeps no other locked
            while self._files:
                _, file = self._files.popitem()
                if not file.closed:
                    releasing.callback(file.close)
                    releasing.callback(file.clear)  # a line that is left behind tells the next owner that this one died


class SharedLease(Grant):
    """GPUs on which tests of other workers of the same run may be too."""

    def __init__(
        self,
        resources: tuple[str, ...],
        used_before: Mapping[str, int],
        used: UsedMemory | None,
        unreturned: tuple[str, ...],
        *,
        others: Callable[[], Collection[str]],
        end: Callable[[], None],
    ) -> None:
        super().__init__(resources, used_before, used, unreturned)
        self._where_others_are = others
        self._end = end
        self._released = False

    def release(self) -> None:
        """Lets the GPUs go; a second time it does nothing, and in a forked child it never does anything."""
        if not self._released:
            self._released = True
            self._end()

    def _list_others(self) -> Collection[str]:
        return self._where_others_are()
