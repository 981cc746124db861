"""The parts of a step's work, each with its range, or why there is none."""

from dataclasses import dataclass


class Unknown(Exception):
    """The model lacks a number; the message says which."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step's work."""

    fastest: float
    """Seconds at the limit."""
    slowest: float
    """Seconds that are still plausible."""
    component: str
