"""What was measured, on its way into baselines: metrics by launch and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuperf.baselines.match import Scalar
from pytest_gpuperf.baselines.schema import (
    Baselines,
    LaunchFigure,
    LaunchInfo,
    MetricBaseline,
    TestBaseline,
)
from pytest_gpuperf.figures.metric import Metric


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of this run."""

    number: int
    """1 and up."""
    id: str
    """Names it in files; no other launch has the same."""
    info: LaunchInfo

    def candidate(
        self, key: str, match: Mapping[str, Scalar], test: str, body_hash: str, metrics: Mapping[str, Metric]
    ) -> Baselines:
        """What one test measured in this launch, as baselines of this hardware."""
        measured = RecordedTest(body_hash)
        measured.add(self.number, self.id, metrics)
        return Baselines(key, match, {self.id: self.info}, {test: measured.entry()})


@dataclass(slots=True)
class RecordedTest:
    """The metrics of one test, launch after launch."""

    body_hash: str
    metrics: dict[str, list[tuple[str, Metric]]] = field(default_factory=dict)
    """By name: launch id and metric."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Numbers of the launches, by id."""

    def add(self, number: int, launch: str, metrics: Mapping[str, Metric]) -> None:
        """Adds the metrics of one more launch, given by its number and id."""
        self.numbers[launch] = number
        for name, metric in metrics.items():
            self.metrics.setdefault(name, []).append((launch, metric))

    def complete(self, launches: int) -> bool:
        """Whether each metric has a value of each of so many launches."""
        return bool(self.metrics) and all(len(figures) == launches for figures in self.metrics.values())

    def lack(self, launches: int) -> str:
        """Says what it lacks to be complete, and the cure."""
        for number in range(1, launches + 1):
            if number not in self.numbers.values():
                return f"it did not run in launch {number} of {launches}: let the recording run to its end"
        for name, figures in self.metrics.items():
            if lacking := sorted(self.numbers[id_] for id_ in self.numbers.keys() - {id_ for id_, _ in figures}):
                return (
                    f"it checked no {name!r} in launch {lacking[0]} of {launches}, as it did in others: "
                    "let it check the same metrics in each"
                )
        return "it ran more than once in a launch: select it once"

    def launches(self) -> set[str]:
        """The ids of the launches that its metrics are of."""
        return {id_ for figures in self.metrics.values() for id_, _ in figures}

    def entry(self) -> TestBaseline:
        """The test's entry in a file of baselines."""
        return TestBaseline(self.body_hash, {name: _make_metric(figures) for name, figures in self.metrics.items()})


def _make_metric(figures: list[tuple[str, Metric]]) -> MetricBaseline:
    first = figures[0][1]
    launches = tuple(
        LaunchFigure(launch, one.samples, one.value, one.q1, one.q3, one.sm_clock, one.watts, one.kelvin)
        for launch, one in figures
    )
    return MetricBaseline(unit=first.unit, better=first.better, clock=first.clock, launches=launches)
