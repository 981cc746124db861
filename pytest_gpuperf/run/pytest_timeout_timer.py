"""The timer of pytest-timeout's thread method: it would end the whole process, and show nothing of the ranks."""

from __future__ import annotations

import sys
import threading
from typing import Any, NoReturn

import pytest

from pytest_gpuperf.run.interruptions import Interruptions


def set_timer(item: pytest.Item, settings: Any, interruptions: Interruptions) -> bool | None:
    """Sets the timer of a test, in the place of the plugin's own; None leaves it to the plugin.

    Where the main thread waits for ranks it can be interrupted: the test fails, and others go on. Else the plugin does
    what it always does.

    Args:
        item: the test.
        settings: the plugin's, with ``timeout`` in seconds and ``method``.
        interruptions: of the run.
    """
    plugin: Any = sys.modules.get("pytest_timeout")
    if plugin is None or getattr(settings, "method", None) != "thread" or not hasattr(plugin, "timeout_timer"):
        return None

    def fail() -> NoReturn:
        pytest.fail(f"Timeout (>{settings.timeout}s) from pytest-timeout.")

    def over() -> None:
        debugged = not settings.disable_debugger_detection and plugin.is_debugging()
        if debugged or not interruptions.interrupt(fail):
            plugin.timeout_timer(item, settings)

    timer = threading.Timer(settings.timeout, over)
    timer.name = f"pytest_timeout {item.nodeid}"
    item.cancel_timeout = timer.cancel  # type: ignore[attr-defined]  # where the plugin looks for it
    timer.daemon = True
    timer.start()
    return True
