"""Private names of Ray, each behind a function."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import ray


def print_nothing() -> None:
    """Has Ray print nothing here of its processes: what became of a node, reports tell."""
    with contextlib.suppress(ImportError):  # another Ray prints, at worst
        from ray._private import worker

        if hasattr(worker, "print_to_stdstream"):
            vars(worker)["print_to_stdstream"] = _drop


def leave_errors_to_python() -> None:
    """Undoes what Ray has done about exceptions that nobody catches, when it was imported: it asks the head first."""
    worker: Any = getattr(getattr(ray, "_private", None), "worker", None)
    if sys.excepthook is getattr(worker, "custom_excepthook", None):
        sys.excepthook = getattr(worker, "normal_excepthook", sys.__excepthook__)


def answers_requests(timeout: float) -> bool:
    """Whether the head answers a request. Only another Ray than this one lacks the names: then nobody knows better.

    Args:
        timeout: seconds.
    """
    worker: Any = getattr(getattr(ray, "_private", None), "worker", None)
    check = getattr(getattr(getattr(worker, "global_worker", None), "gcs_client", None), "check_alive", None)
    if check is None:
        return True
    try:
        check([], timeout=timeout)
    except Exception:  # whatever this Ray raises
        return False
    return True


def _drop(*_: Any, **__: Any) -> None:
    pass
