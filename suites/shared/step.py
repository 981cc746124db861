"""A program prepares and returns its step, a function without arguments: what is checked is what is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from pytest_gpuperf import Context

Result = TypeVar("Result")
Step = Callable[[], Result]
"""One step of a prepared program: ``Step[torch.Tensor]`` returns a tensor, ``Step[Tensors]`` tensors by name."""
StepOf = Callable[[int], Step[Any]]
"""Takes a size in bytes, and prepares the step of that size; what ``perf.sweep`` asks a program for."""
Tensors = dict[str, torch.Tensor]
"""What a rank holds, by name."""


def once(ctx: Context, program: Callable[..., Step[Result]], **kwargs: Any) -> Result:
    """Prepares a program and calls its step a single time."""
    return program(ctx, **kwargs)()


def second(ctx: Context, program: Callable[..., Step[Result]], **kwargs: Any) -> Result:
    """What the second step returns: nothing of the first one's may be left in it."""
    step = program(ctx, **kwargs)
    step()
    return step()


def each_step(ctx: Context, program: Callable[..., Step[Result]], number: int, /, **kwargs: Any) -> list[Result]:
    """What each of so many steps returns; a result that a later step writes to must be a copy."""
    step = program(ctx, **kwargs)
    return [step() for _ in range(number)]


def gradient_of(leaf: torch.Tensor, name: str = "the leaf") -> torch.Tensor:
    """What backward has left in ``.grad``."""
    assert leaf.grad is not None, f"{name} has no gradient"
    return leaf.grad
