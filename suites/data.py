"""Data that suites share: whole numbers, whose results are exact, and steps checked as they are timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_gpuperf import Context
from pytest_gpuperf.strategies import whole_numbers as integers

__all__ = ["integers", "once"]


def once(ctx: Context, program: Callable[..., Callable[[], Any]], **kwargs: Any) -> Any:
    """Prepares a timed program and calls its step a single time: what is timed is what is checked."""
    return program(ctx, **kwargs)()
