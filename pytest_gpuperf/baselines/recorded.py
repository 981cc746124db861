"""What was measured, on its way into baselines: figures by launch and test, and where they were written."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpuperf.baselines.match import Scalar
from pytest_gpuperf.baselines.merge import Merged, Stamp, UpdatePolicy, merge
from pytest_gpuperf.baselines.schema import (
    BaselineError,
    Baselines,
    LaunchFigure,
    LaunchInfo,
    MetricBaseline,
    TestBaseline,
)
from pytest_gpuperf.baselines.storage import Storage, storage_at
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
    """The figures of one test, launch after launch."""

    body_hash: str
    metrics: dict[str, list[tuple[str, Metric]]] = field(default_factory=dict)
    """By name: launch id and figure."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Numbers of the launches, by id."""

    def add(self, number: int, launch: str, metrics: Mapping[str, Metric]) -> None:
        """Adds the figures of one more launch, given by its number and id."""
        self.numbers[launch] = number
        for name, metric in metrics.items():
            self.metrics.setdefault(name, []).append((launch, metric))

    def complete(self, launches: int) -> bool:
        """Whether each metric has a figure of each of so many launches."""
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
        """The ids of the launches that its figures are of."""
        return {id_ for figures in self.metrics.values() for id_, _ in figures}

    def entry(self) -> TestBaseline:
        """The test's entry in a file of baselines."""
        return TestBaseline(self.body_hash, {name: _metric(figures) for name, figures in self.metrics.items()})


@dataclass(frozen=True, slots=True)
class Saved:
    """The place of a recording."""

    where: str
    """The place, as messages call it."""
    tests: int
    problem: str | None = None
    """Why it did not go where it should; None if it did."""
    merged: Merged | None = None
    """What became of each test; None if the file could not be written."""

    @property
    def nowhere(self) -> bool:
        """Whether it could not be written at all."""
        return self.problem is not None and not self.tests

    @property
    def failed(self) -> bool:
        """Whether something that was asked for was not done."""
        return self.problem is not None or (self.merged is not None and self.merged.failed)


def save(storage: Storage, candidate: Baselines, policy: UpdatePolicy, stamp: Stamp) -> Saved:
    """Merges what was measured into the stored baselines; into a temporary folder if those cannot be written.

    Args:
        storage: keeps the baselines of each hardware.
        candidate: what was measured.
        policy: what may be replaced.
        stamp: what the file keeps of the update.
    """
    key, match = candidate.hardware_key, candidate.match
    where = storage.where(key)
    outcomes: list[Merged] = []

    def change(stored: Baselines | None) -> Baselines | None:
        if stored is not None:
            stored.require(match, where)  # another run may have written it meanwhile
        outcomes.append(merge(stored or Baselines(key, match), candidate, policy, stamp))
        return outcomes[-1].baselines if outcomes[-1].written else None

    try:
        storage.update(key, change)
    except BaselineError as error:
        whole = merge(Baselines(key, match), candidate, UpdatePolicy(minimum_slowdown=policy.minimum_slowdown), stamp)
        try:
            elsewhere = storage_at(Path(tempfile.mkdtemp(prefix="gpuperf-")))
            elsewhere.update(key, lambda _: whole.baselines)
        except (OSError, BaselineError) as another:
            return Saved(where, 0, f"{error}; nor can it be kept in a temporary folder: got {another!r}")
        return Saved(elsewhere.where(key), len(candidate.tests), str(error))
    return Saved(where, len(outcomes[0].written), merged=outcomes[0])


def _metric(figures: list[tuple[str, Metric]]) -> MetricBaseline:
    first = figures[0][1]
    launches = tuple(
        LaunchFigure(launch, one.samples, one.value, one.q1, one.q3, one.sm_clock, one.watts, one.kelvin)
        for launch, one in figures
    )
    return MetricBaseline(unit=first.unit, better=first.better, clock=first.clock, launches=launches)
