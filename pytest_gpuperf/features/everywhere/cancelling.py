"""Notes the signals by which a launcher or a user cancels a job."""

from __future__ import annotations

import asyncio
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Cancelling:
    """Whether this process was asked to end, and how."""

    def __init__(self) -> None:
        """Listens from now on; the event loop must run."""
        self.by: signal.Signals | None = None
        """The first signal that came; None while none has."""
        self._event = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.cancel, number)

    def cancel(self, number: signal.Signals) -> None:
        """Notes that the job shall end."""
        if self.by is None:
            self.by = number
        self._event.set()

    async def wait(self) -> signal.Signals:
        """Return the signal once there is one."""
        await self._event.wait()
        assert self.by is not None
        return self.by


def compute_status(number: signal.Signals) -> int:
    """Return the exit status of a process that a signal has ended, as a shell has it."""
    return 128 + int(number)
