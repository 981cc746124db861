"""The arithmetic of the comparison, and its table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.nccl_tests.plan import Figure, Plan, Point, Sweep, Turn
from pytest_gpuperf.report.units import format_bytes, format_value


class Verdict(Enum):
    """Whether a row meets its target."""

    MET = "met"
    NOISE = "missed, within the noise"
    MISSED = "MISSED"
    UNFIT = "UNFIT"


@dataclass(frozen=True, slots=True)
class Row:
    """One point, measured by both arms in as many turns."""

    point: Point
    sweep: Sweep
    theirs: tuple[float, ...]
    """nccl-tests' figure of each turn: seconds, or bytes per second."""
    ours: tuple[float, ...]
    """The plugin's."""
    unfit: str = ""
    """What was wrong with the machine in one of the turns; empty where nothing is known against it."""

    @property
    def difference(self) -> float:
        """The plugin's median over nccl-tests', less 1."""
        return statistics.median(self.ours) / statistics.median(self.theirs) - 1

    @property
    def reach(self) -> tuple[float, float]:
        """The smallest and the largest difference of any turn of one arm from any of the other."""
        return min(self.ours) / max(self.theirs) - 1, max(self.ours) / min(self.theirs) - 1

    @property
    def verdict(self) -> Verdict:
        """A miss is within the noise if some turn of one arm and some turn of the other are within the target."""
        if self.unfit:
            return Verdict.UNFIT
        tolerance = self.sweep.tolerance
        if abs(self.difference) <= tolerance:
            return Verdict.MET
        low, high = self.reach
        return Verdict.NOISE if low <= tolerance and high >= -tolerance else Verdict.MISSED


def rows(plan: Plan, theirs: Sequence[Turn], ours: Sequence[Turn]) -> list[Row]:
    """Every point of the plan with the figures of all turns."""
    found = []
    for sweep, point in plan.points:
        told = [turn.figures[point] for turn in theirs], [turn.figures[point] for turn in ours]
        before, after = (_values(sweep, arm) for arm in told)
        unfit = next((figure.unfit for arm in told for figure in arm if figure.unfit), "")
        found.append(Row(point, sweep, before, after, unfit))
    return found


def _values(sweep: Sweep, figures: Sequence[Figure]) -> tuple[float, ...]:
    return tuple(figure.seconds if sweep.quantity == "latency" else figure.busbw for figure in figures)


def spread(values: Sequence[float]) -> float:
    """The range of the turns, relative to their median."""
    return (max(values) - min(values)) / statistics.median(values)


def table(found: Sequence[Row]) -> Iterator[str]:
    """The rows as lines of text."""
    yield (
        f"{'op':<15}{'ranks':>5}{'size':>10}  {'':<8}{'nccl-tests':>12}{'spread':>8}{'plugin':>12}{'spread':>8}"
        f"{'difference':>12}{'target':>8}"
    )
    for row in found:
        unit = "s" if row.sweep.quantity == "latency" else "B/s"
        arms = "".join(
            f"{format_value(statistics.median(arm), unit):>12}{spread(arm):>8.2%}" for arm in (row.theirs, row.ours)
        )
        point = row.point
        yield (
            f"{point.op:<15}{point.ranks:>5}{format_bytes(point.nbytes):>10}  {row.sweep.quantity:<8}{arms}"
            f"{row.difference:>+12.2%}{f'{row.sweep.tolerance:.0%}':>8}  {row.verdict.value}"
            + (f": {row.unfit}" if row.unfit else "")
        )


def summary(found: Sequence[Row]) -> str:
    """How many rows meet their target, in a line."""
    counts = {verdict: sum(row.verdict is verdict for row in found) for verdict in Verdict}
    missed = len(found) - counts[Verdict.MET]
    text = f"{counts[Verdict.MET]} of {len(found)} rows meet their target"
    if missed:
        text += f"; of the {missed} others {counts[Verdict.NOISE]} are within the noise"
    if counts[Verdict.UNFIT]:
        text += f" and {counts[Verdict.UNFIT]} measured on a machine that was not fit"
    return text
