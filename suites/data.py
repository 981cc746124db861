"""What suites share: whole numbers, whose results are exact, gradients, and steps checked as they are timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_gpuperf import Context
from pytest_gpuperf.strategies import whole_numbers as integers

__all__ = ["gradient", "integers", "once"]


def once(ctx: Context, program: Callable[..., Callable[[], Any]], **kwargs: Any) -> Any:
    """Prepares a timed program and calls its step a single time: what is timed is what is checked."""
    return program(ctx, **kwargs)()


def gradient(leaf: torch.Tensor) -> torch.Tensor:
    """What backward left on a leaf that it has reached."""
    assert leaf.grad is not None
    return leaf.grad
