"""Whether metrics of two runs can be held against one another."""

from __future__ import annotations

from typing import Literal, Protocol


class Measured(Protocol):
    """A metric, or what is stored of one."""

    @property
    def unit(self) -> str:
        """As text."""
        ...

    @property
    def better(self) -> str:
        """``higher`` or ``lower``."""
        ...

    @property
    def clock(self) -> str:
        """What timed it; empty if that is not known."""
        ...


def find_mismatch(one: Measured, other: Measured) -> Literal["unit", "better", "clock"] | None:
    """Returns in what two metrics differ that makes them incomparable; None if they can be compared.

    A clock that is not known may be any.
    """
    if one.unit != other.unit:
        return "unit"
    if one.better != other.better:
        return "better"
    return "clock" if one.clock and other.clock and one.clock != other.clock else None
