"""The runs of a trial: what each came to, as JSON and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict

LEAST = 1e-4  # seconds of a step: 5 % of it is twice what an empty kernel takes, and more

ALARMS = frozenset({Outcome.REGRESSED, Outcome.SHIFTED, Outcome.INVALID, Outcome.BROKEN, Outcome.MISSED})
"""What fails a run that should pass."""
UNFIT = frozenset({Outcome.MISSING, Outcome.STALE, Outcome.SUSPECT})
"""What tells nothing of the rule: no baseline, that of another test, a run that was interrupted."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What one figure of a run came to."""

    test: str
    name: str
    outcome: str
    change: float | None
    """Relative to its baseline; above 0 is better. None where nothing judges it."""
    slowable: bool
    """Whether it is a time that is long enough for its test to be slowed."""
    of_the_gpus: bool = False
    """Whether it is worse as these GPUs are at their power limit, so that the run does not fail by it."""

    @classmethod
    def of(cls, verdict: Verdict) -> Figure:
        """That of a verdict."""
        slowable = verdict.metric.unit == "s" and verdict.metric.value >= LEAST and verdict.change is not None
        return cls(
            verdict.test, verdict.metric_name, verdict.outcome.value, verdict.change, slowable, verdict.of_the_gpus
        )

    @property
    def is_alarm(self) -> bool:
        """Whether the run fails by it."""
        return Outcome.of(self.outcome) in ALARMS and not self.of_the_gpus


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the whole suite."""

    at: str
    """When it began, in UTC."""
    gpus: str
    """Tells its GPUs from others of their kind."""
    control: dict[str, float]
    """Median seconds of the control workload, by name."""
    seconds: float
    slowed: str | None
    """The test that was slowed; None if none was."""
    figures: tuple[Figure, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        """What to_json wrote."""
        return cls(**data | {"figures": tuple(Figure(**figure) for figure in data["figures"])})

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    @property
    def slowable(self) -> list[str]:
        """The tests that could be slowed."""
        return sorted({figure.test for figure in self.figures if figure.slowable})

    @property
    def names(self) -> set[tuple[str, str]]:
        """Test and name of every figure."""
        return {(figure.test, figure.name) for figure in self.figures}

    @property
    def false_alarms(self) -> list[Figure]:
        """Figures by which the run fails, but for losses of the slowed test, whether they count as found or not."""
        lost = {Outcome.REGRESSED.value, Outcome.SHIFTED.value}
        return [
            figure
            for figure in self.figures
            if figure.is_alarm and not (figure.test == self.slowed and figure.outcome in lost)
        ]

    @property
    def found(self) -> bool:
        """Whether a figure of the slowed test regressed."""
        return any(f.test == self.slowed and f.outcome == Outcome.REGRESSED.value for f in self.figures)


def table(runs: Sequence[Run]) -> list[str]:
    """A line for each run, and one for each false alarm."""
    return [line for number, run in enumerate(runs, 1) for line in lines_of(number, run)]


def lines_of(number: int, run: Run) -> list[str]:
    """Those of one run."""
    what = "unchanged"
    if run.slowed is not None:
        changes = [figure.change for figure in run.figures if figure.test == run.slowed and figure.change is not None]
        said = ", ".join(f"{change:+.1%}" for change in changes)
        what = f"slowed {run.slowed}: {'found' if run.found else 'NOT FOUND'}, {said}"
    counts = Counter(figure.outcome for figure in run.figures)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    line = f"{number:3}  {run.at}  {run.seconds:4.0f} s  {what}  ({outcomes})"
    return [line, *(f"     FALSE ALARM: {alarm.test} {alarm.name}: {alarm.outcome}" for alarm in run.false_alarms)]


def summary(runs: Sequence[Run]) -> list[str]:
    """What they come to."""
    unchanged = [run for run in runs if run.slowed is None]
    slowed = [run for run in runs if run.slowed is not None]
    lines = [f"unchanged: {sum(bool(run.false_alarms) for run in unchanged)} of {len(unchanged)} runs raised an alarm"]
    machines = len({run.gpus for run in runs})
    lines[0] += f"; all runs were on {machines} set{'s' if machines > 1 else ''} of GPUs"
    if slowed:
        lines.append(
            f"slowed: found in {sum(run.found for run in slowed)} of {len(slowed)} runs; "
            f"{sum(bool(run.false_alarms) for run in slowed)} raised an alarm about another test"
        )
    return lines


def holds(runs: Sequence[Run]) -> bool:
    """Whether no run raised a false alarm, and nine of ten slowdowns were found."""
    slowed = [run for run in runs if run.slowed is not None]
    return not any(run.false_alarms for run in runs) and sum(run.found for run in slowed) >= 0.9 * len(slowed)
