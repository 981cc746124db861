"""A figure that moved from its record, for those who look for the reason."""

from dataclasses import dataclass

from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.rule import Rule


@dataclass(frozen=True, slots=True)
class Moved:
    """The record of such a figure, and the rule that judged it."""

    rule: Rule
    history: History
    gained: bool
    """Whether the figure is better than its record."""
