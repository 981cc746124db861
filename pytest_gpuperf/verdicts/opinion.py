"""What is expected of a metric that has no record, as a value that travels into files.

References of machines of this kind expect it, or a model of the hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Saying(Enum):
    """What a metric comes to by what is expected of it."""

    PLAUSIBLE = "plausible"
    BELOW = "below"
    ABOVE = "above"
    """Better than the hardware allows: the work is not what the test says."""
    NONE = "none"
    """Neither references nor the model expect anything."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What is expected of a metric, and what it comes to."""

    saying: Saying
    low: float | None = None
    """The smallest plausible value, in the metric's unit; None if nothing bounds it."""
    high: float | None = None
    """The largest; None if nothing bounds it."""
    component: str = ""
    """The part of the hardware that takes most of the time."""
    why: str = ""
    """Why there is no model."""
    variables: tuple[str, ...] = ()
    """What is set in the environment while the metric is below, as NAME=value, likeliest causes first."""
    source: str = field(default="", metadata={"optional": True})
    """The references that expect it, in words; empty for the model."""
    usual: float | None = field(default=None, metadata={"optional": True})
    """What these machines show, in the metric's unit; None for the model."""
    seen: float | None = field(default=None, metadata={"optional": True})
    """The smallest slowdown that is found with 95 %, as a ratio minus 1; None for the model."""
