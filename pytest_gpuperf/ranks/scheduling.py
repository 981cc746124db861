"""When the kernel lets a rank's threads run. Runs in rank processes."""

from __future__ import annotations

import contextlib
import os


def wait_for_turns() -> None:
    """Keeps this thread, and those that it starts, from interrupting others when they wake up.

    Gloo's thread wakes up while another one still holds the lock of their connection. It then asks again and again, on
    the core of the other thread. With ``SCHED_BATCH`` that other one goes on first. A policy that somebody chose stays.
    """
    with contextlib.suppress(OSError):  # a sandbox may forbid it, or know one policy alone
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
