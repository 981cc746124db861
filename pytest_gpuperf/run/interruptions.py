"""What ends a test from outside while its ranks run a program: SIGTERM, and the timer of pytest-timeout.

Python raises from a handler of signals in the main thread alone, and that is where a run waits for its ranks. So the
run's own way to fail tells where each rank was.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_PATIENCE = 3.0  # seconds until a thread that interrupts gives up: the story takes some tenths of one


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM while ranks ran a program, or codes raced; pytest ends as after Ctrl-C."""

    __module__ = "pytest_gpuperf"


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated("got SIGTERM")


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Has SIGTERM raise in the main thread, as Ctrl-C does, unless it has a handler already."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Interruptions:
    """Ends the wait for ranks from outside."""

    def __init__(self) -> None:
        self._waits = False
        self._pending: Callable[[], NoReturn] | None = None
        self._ended = threading.Condition()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Lets SIGTERM raise instead of ending the process at once, unless it has a handler already."""
        # Only a main thread may do it.
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        if not main or before not in (signal.SIG_DFL, _terminate):
            yield
            return
        signal.signal(signal.SIGTERM, self._raise)
        self._waits = True
        try:
            yield
        finally:
            try:
                with self._ended:
                    self._waits = False
                    self._pending = None
                    self._ended.notify_all()
            finally:
                signal.signal(signal.SIGTERM, before)

    def interrupt(self, fail: Callable[[], NoReturn]) -> bool:
        """Has the main thread raise what this raises, from another thread; whether it did, and has told of its ranks.

        Args:
            fail: raises.
        """
        with self._ended:
            if not self._waits:
                return False
            self._pending = fail
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            return self._ended.wait_for(lambda: not self._waits, _PATIENCE)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending()
        _terminate(number, frame)
