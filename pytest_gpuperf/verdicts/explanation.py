"""Why a metric moved, as far as launches proved it: a value that travels with its verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pytest_gpuperf.baselines.plain import OPTIONAL
from pytest_gpuperf.verdicts.share import Share


class Explained(Enum):
    """What launches with the record's variables showed."""

    EXPLAINED = "explained"
    """With the record's variables the metric is as recorded."""
    PARTLY = "partly explained"
    """With the record's variables the metric moves towards its record, and does not reach it."""
    NOT = "not explained"
    """With the record's variables the metric stays where it is."""
    OPEN = "open"
    """Launches differ so much that they did not decide."""
    UNTRIED = "not tried"
    """No launch had the record's variables."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What explains a metric that moved, or does not."""

    found: Explained
    undone: Mapping[str, tuple[str, str]] = field(default_factory=dict, metadata=OPTIONAL)
    """Variables that the launches had as the record has them: as recorded and now, empty if not set. If the metric is
    explained, only those that explain it."""
    value: float | None = field(default=None, metadata=OPTIONAL)
    """The metric of those launches, in its SI unit."""
    share: Share | None = field(default=None, metadata=OPTIONAL)
    """The run as it is against those launches, both of today."""
    untried: Mapping[str, str] = field(default_factory=dict, metadata=OPTIONAL)
    """Variables that differ from the record and stayed as they are, with the reason."""
    problem: str = field(default="", metadata=OPTIONAL)
    """Why nothing was tried or decided; empty if the launches tell."""
