"""What makes a tensor wrong, in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause that the tensor agrees with, to rounding."""

    code: str
    """A word for programs: ``partial sum``, ``factor``, ``order``, ..."""
    text: str
    """What is wrong, and what would be right."""
