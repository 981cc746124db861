"""The runs of a trial: what each came to, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_gpuperf.verdicts.judge import Outcome, Verdict

LEAST = 1e-4  # seconds of a step: 5 % of it is twice what an empty kernel takes, and more


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the whole suite."""

    at: str
    """When it began, in UTC."""
    host: str
    seconds: float
    exit_status: int
    slowed: str | None
    """The test that was slowed; None if none was."""
    outcomes: dict[str, int]
    """How many figures came to what."""
    alarms: tuple[str, ...]
    """The figures that regressed: ``test metric``."""
    slowable: tuple[str, ...]
    """The tests that could be slowed, as they have a time that is long enough."""
    changes: dict[str, float]
    """Of each figure that was judged, relative to its baseline; above 0 is better."""

    @classmethod
    def of(
        cls, verdicts: Sequence[Verdict], *, at: str, host: str, seconds: float, exit_status: int, slowed: str | None
    ) -> Run:
        """What these verdicts say."""
        outcomes: dict[str, int] = {}
        for verdict in verdicts:
            outcomes[verdict.outcome.value] = outcomes.get(verdict.outcome.value, 0) + 1
        regressed = [verdict for verdict in verdicts if verdict.outcome is Outcome.REGRESSED]
        times = [verdict for verdict in verdicts if verdict.metric.unit == "s" and verdict.metric.value >= LEAST]
        return cls(
            at=at,
            host=host,
            seconds=seconds,
            exit_status=exit_status,
            slowed=slowed,
            outcomes=outcomes,
            alarms=tuple(map(named, regressed)),
            slowable=tuple(sorted({verdict.test for verdict in times})),
            changes={named(verdict): verdict.change for verdict in verdicts if verdict.change is not None},
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        """What to_json wrote."""
        return cls(**data | {name: tuple(data[name]) for name in ("alarms", "slowable")})

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    @property
    def false_alarms(self) -> tuple[str, ...]:
        """Figures that regressed, but for those of the slowed test."""
        return tuple(alarm for alarm in self.alarms if alarm.rpartition(" ")[0] != self.slowed)

    @property
    def changed(self) -> list[float]:
        """How the figures of the slowed test changed."""
        return [change for figure, change in self.changes.items() if figure.rpartition(" ")[0] == self.slowed]

    @property
    def found(self) -> bool:
        """Whether a figure of the slowed test regressed."""
        return len(self.alarms) > len(self.false_alarms)


def named(verdict: Verdict) -> str:
    """Test and metric."""
    return f"{verdict.test} {verdict.metric_name}"


def table(runs: Sequence[Run]) -> list[str]:
    """A line for each run."""
    lines = []
    for number, run in enumerate(runs, 1):
        what = "unchanged" if run.slowed is None else f"slowed {run.slowed}: {'found' if run.found else 'NOT FOUND'}"
        if run.changed:
            what += f", {', '.join(f'{change:+.1%}' for change in run.changed)}"
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(run.outcomes.items()))
        lines.append(f"{number:3}  {run.at}  {run.seconds:4.0f} s  {what}  ({outcomes})")
        lines += [f"     FALSE ALARM: {alarm}" for alarm in run.false_alarms]
    return lines


def summary(runs: Sequence[Run]) -> list[str]:
    """What they come to."""
    unchanged = [run for run in runs if run.slowed is None]
    slowed = [run for run in runs if run.slowed is not None]
    lines = [f"unchanged: {sum(bool(run.false_alarms) for run in unchanged)} of {len(unchanged)} runs raised an alarm"]
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
