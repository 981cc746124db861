"""What a race has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.figures.metric import Metric


@dataclass(frozen=True, slots=True)
class Blocks:
    """What both arms of a race measured of one metric in whole blocks, in order of measurement."""

    old: Sequence[Metric]
    present: Sequence[Metric]
    against: str
    """The old arm, as a user may name it."""
