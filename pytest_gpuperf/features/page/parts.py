"""The parts of what a page says: figures, tests, and lists of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpuperf.features.page.facts import Fact
from pytest_gpuperf.features.page.points import Points
from pytest_gpuperf.features.page.run import Run
from pytest_gpuperf.verdicts.outcome import Effect, Outcome


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one test on one hardware."""

    id: str
    """Names it on the page."""
    name: str
    outcome: Outcome
    value: str
    """The present one; of a race without a record, the old one is before it."""
    change: str
    share: float | None
    """The metric as a share of its physical limit."""
    limit: str
    """Share and name of the limit in words; empty without one."""
    lines: Sequence[str]
    """What happened, and the details."""
    facts: Sequence[Fact]
    drawing: Mapping[str, Any]
    """What the chart draws: JSON types, in the unit that the axis names."""
    effect: Effect = Effect.PASSES
    """What it makes of its test."""
    points: Points | None = None
    """Old and new launches of a figure that moved."""
    why_not_judged: str = ""
    """Why the figure could not be judged; empty if it was."""


@dataclass(frozen=True, slots=True)
class Test:
    """One test with figures on one hardware."""

    __test__ = False  # pytest would collect a class of this name

    name: str
    file: str
    hardware_key: str
    headline: Figure
    figures: Sequence[Figure]

    @property
    def outcome(self) -> Outcome:
        """The worst that one of its figures came to."""
        return self.headline.outcome

    @property
    def passes(self) -> bool:
        """Whether all of its figures pass, such as those that have no record and are as expected."""
        return all(figure.effect is Effect.PASSES for figure in self.figures)


@dataclass(frozen=True, slots=True)
class Row:
    """A figure in a list, with its test."""

    test: Test
    figure: Figure
    more: int = 0
    """How many other figures of the test would be in the list."""


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Figures that could not be judged, all for one reason."""

    outcome: Outcome
    why: str
    passes: bool
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Subject:
    """The tests of one file."""

    file: str
    tests: Sequence[Test]


@dataclass(frozen=True, slots=True)
class Environment:
    """What one run ran with, beside what its baselines ran with."""

    run: Run
    rows: Sequence[tuple[str, str, str]]
    """Name, value now, and the recorded one if it differs."""
