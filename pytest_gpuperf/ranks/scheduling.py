"""When the kernel lets a rank's threads run. Runs in rank processes."""

from __future__ import annotations

import contextlib
import os


def wait_for_turns() -> None:
    """Lets no thread that wakes up interrupt another one: of this thread, and of those that it starts.

    Gloo's thread wakes up while another one still holds the lock of their connection. It then asks again and again, on
    the core of the other thread. With ``SCHED_BATCH`` that other one goes on first. A policy that somebody chose stays.
    """
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(PermissionError):  # of a sandbox
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
