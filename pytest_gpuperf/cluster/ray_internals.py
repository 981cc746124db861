"""Private names of Ray, each behind a function."""

from __future__ import annotations

import contextlib
from typing import Any


def print_nothing() -> None:
    """Has Ray print nothing here of its processes: what became of a node, reports tell."""
    with contextlib.suppress(ImportError):  # another Ray prints, at worst
        from ray._private import worker

        if hasattr(worker, "print_to_stdstream"):
            vars(worker)["print_to_stdstream"] = _dropped


def _dropped(*_: Any, **__: Any) -> None:
    pass
