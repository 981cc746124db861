"""How soon a run ends that Ctrl-C interrupts while it imports."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

_AGAIN = 0.5  # seconds; an import that the interrupt ends has unwound by then


class BriefInterrupt:
    """Has pytest format the place of an interrupt only; a plugin of runs without ``--full-trace``.

    pytest prints only the place then, but formats every frame, and parses the frame's whole file for it. In the middle
    of ``import torch`` that takes longer than the import.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Cuts the traceback to the innermost frame that is not hidden."""
        if visible := excinfo.traceback.filter(excinfo):
            excinfo.traceback = visible[-1:]


@contextmanager
def interrupts_are_repeated() -> Iterator[None]:
    """Repeats an interrupt until it has ended what runs inside.

    Modules swallow one now and then, as torch does where C++ calls Python. A handler of somebody else's stays.
    """
    main = threading.current_thread()
    if main is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    over = threading.Event()
    repeating: list[threading.Thread] = []

    def repeat() -> None:
        while not over.wait(_AGAIN):
            signal.pthread_kill(main.ident or 0, signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        if over.is_set():
            return  # a repetition that came too late
        if not repeating:
            repeating.append(threading.Thread(target=repeat, name="gpuperf interrupt", daemon=True))
            repeating[0].start()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        try:
            yield
        finally:
            over.set()
    finally:
        over.set()  # a repetition may come right before the line above
        if repeating:
            repeating[0].join()
        signal.signal(signal.SIGINT, signal.default_int_handler)
