"""Waiting for what other processes do."""

import time
from collections.abc import Callable
from pathlib import Path

from pytest_gpuperf.leases.queue import SUFFIX
from tests.leases.owners import DEADLINE


def until(happened: Callable[[], bool]) -> None:
    """Waits for something; fails at a deadline far beyond it."""
    end = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)  # what another process does to files raises no event


def waiters(folder: Path) -> int:
    """How many tickets there are."""
    return len(list(folder.glob(f"*{SUFFIX}")))
