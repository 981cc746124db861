"""What the model says of a figure, as a value that travels into files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Saying(Enum):
    """What a figure comes to by the model."""

    PLAUSIBLE = "plausible"
    BELOW = "below the model"
    ABOVE = "above the model"
    """Better than the hardware allows: the work is not what the test says."""
    NONE = "no model"


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the model expects of a figure, and what it says of it."""

    saying: Saying
    low: float | None = None
    """The smallest plausible value, in the figure's unit; None without a model."""
    high: float | None = None
    """The largest; None if nothing bounds it."""
    component: str = ""
    """The part of the hardware that takes most of the time."""
    why: str = ""
    """Why there is no model."""
    variables: tuple[str, ...] = ()
    """What is set in the environment while the figure is below the model, as NAME=value, likeliest causes first."""
