"""What the rule does with launches as they were recorded on real GPUs, drawn again.

    python benchmarks/judge_resampled.py [--runs 1000] [--seed 1] [--check] [FILE ...]

FILE is a file of baselines; those of 2 and 4 x H200 by default. Launches whose GPUs are unknown count as
one machine's. In turn each machine with launches of most figures is the one of today's run. Its launches lie around the
median of what was recorded there, by distances that are drawn with replacement from those of all recorded launches from
the medians of their machines. A run on a *new* machine has the other machines' launches as its record, *of one* five
drawn launches of a single other machine. A run on a *known* machine has ten drawn launches on it besides. A rate that
is made of a time is no second figure. Each figure takes the whole way of a run (``simulated/course.py``).

In another run, one random figure is slower by 5 %. *Steady* figures scatter by at most 1 %. An unchanged
run is red if it accuses the code, or if the environment lost on known GPUs, or half of the speed on others. In CI
undecided figures make it red as well. Seconds are those of later launches, at 1.1 s a test and launch and 15 s for a
race to begin, as on 2 x H200.

--check fails if more than 1 % of the unchanged runs are red, beyond what so few runs may be by chance, or if half of
the runs take more than 75 s. 60 s are aimed at.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.collected import collected
from benchmarks.judge_simulation import FALSE_ALARMS_AT_MOST, at_least_1, wilson
from benchmarks.simulated.course import BLOCK, Course, taken
from benchmarks.simulated.noise import TODAY
from pytest_gpuperf.markers import find_scope
from pytest_gpuperf.verdicts.history import History, drop_duplicates
from pytest_gpuperf.verdicts.rule import Policy, Rule

ROOT = Path(__file__).resolve().parents[1]
FILES = [ROOT / "baselines" / f"{count}x-nvidia-h200-nv18.json" for count in (2, 4)]
SLOWER = math.log(1.05)
SECONDS_A_TEST = 1.1
"""Seconds of one test in one launch: 119 tests of 2 x H200 take 131 s."""
SECONDS_TO_RACE = 15.0
SECONDS_AT_MOST = 75.0
STEADY = 0.01
KNOWN, OF_ONE = 10, 5
"""Launches of a record on the machine itself, and of one other machine."""

Machines: TypeAlias = dict[str, dict[str, float]]
"""Logarithms of one figure by machine and launch."""


@dataclass(frozen=True)
class Figure:
    """One recorded figure."""

    test: str
    host: bool
    """Whether it depends on the host."""
    machines: Machines

    @cached_property
    def distances(self) -> list[float]:
        """Distances of launches from the medians of their machines, as if these were known exactly."""
        return [
            (launch - statistics.median(launches.values())) * math.sqrt(len(launches) / (len(launches) - 1))
            for launches in self.machines.values()
            if len(launches) > 1
            for launch in launches.values()
        ]


class Kind(Enum):
    """What the record knows of today's machine."""

    NEW = "new"
    OF_ONE = "new, of one"
    KNOWN = "known"


@dataclass(frozen=True, slots=True)
class Row:
    """What came of the runs on the machines of one file."""

    name: str
    figures: int
    runs: int
    alarms: int
    """Runs that accuse the code."""
    environment: int
    """Runs in which the environment lost."""
    red: int
    suspect: int
    undecided: int
    found: int
    steady: int
    """Runs with a steady figure slowed."""
    found_steady: int
    raced: int
    """Tests that raced, of all runs."""
    seconds: float
    """Seconds that the later launches of the median run take."""

    def __str__(self) -> str:
        """A line of the table."""
        low, high = wilson(self.red, self.runs)
        red = f"{self.red / self.runs:.4f} ({low:.4f}-{high:.4f})"
        shares = "".join(
            f"{count / self.runs:>11.3f}" for count in (self.alarms, self.environment, self.undecided, self.suspect)
        )
        steady = self.found_steady / self.steady if self.steady else math.nan
        return (
            f"{self.name:<16}{self.figures:>8}{red:>25}{shares}{self.found / self.runs:>8.3f}{steady:>8.3f}"
            f"{self.raced / self.runs:>8.1f}{self.seconds:>9.0f}"
        )


HEAD = (
    f"{'today':<16}{'figures':>8}{'red (95 %)':>25}{'code':>11}{'environm.':>11}{'undecided':>11}{'suspect':>11}"
    f"{'power':>8}{'steady':>8}{'raced':>8}{'seconds':>9}"
)


def figures_of(data: Mapping[str, Any], items: Mapping[str, pytest.Function]) -> list[Figure]:
    """The figures of a file of baselines, each once, larger is worse.

    Args:
        data: The file.
        items: The perf tests by node id; they say which figures depend on the host.
    """
    gpus = {id_: info.get("gpus", "") for id_, info in data["launches"].items()}
    found = []
    for test, entry in data["tests"].items():
        metrics = {name: _logs(metric, gpus) for name, metric in entry["metrics"].items()}
        histories = {name: History.of(_plain(machines), "") for name, machines in metrics.items()}
        once = drop_duplicates(list(histories.values()))
        found += [
            Figure(test, test in items and find_scope(items[test], name) == "host", machines)
            for name, machines in metrics.items()
            if any(histories[name] is one for one in once)
        ]
    return found


def _logs(metric: Mapping[str, Any], gpus: Mapping[str, str]) -> Machines:
    sign = 1 if metric["better"] == "lower" else -1
    machines: Machines = {}
    for launch in metric["launches"]:
        machines.setdefault(gpus[launch["launch"]] or "unknown", {})[launch["launch"]] = sign * math.log(
            launch["median"]
        )
    return machines


def _plain(machines: Machines) -> dict[str, list[float]]:
    return {name: list(launches.values()) for name, launches in machines.items()}


def drawn(rng: np.random.Generator, figure: Figure, machine: str, count: int) -> list[float]:
    """Launches of a figure on a machine."""
    center = statistics.median(figure.machines[machine].values())
    distances = figure.distances
    if not distances:
        return [center] * count
    return [center + distances[index] for index in rng.integers(0, len(distances), count)]


def row(name: str, figures: Sequence[Figure], kind: Kind, runs: int, seed: int) -> Row:
    """Run on each machine of a file in turn.

    Raises:
        LookupError: the file has no machine to run on, or none to hold it against; says what it lacks.
    """
    rng = np.random.default_rng(seed)
    machines = sorted({machine for figure in figures for machine in figure.machines})
    names = [one for one in machines if 2 * sum(one in figure.machines for figure in figures) > len(figures)]
    if len(names) < (1 if kind is Kind.KNOWN else 2):
        raise LookupError(f"{'a' if kind is Kind.KNOWN else 'a second'} machine with most metrics")
    made = []
    for run in range(runs):
        here = names[run % len(names)]
        others = [one for one in names if one != here]
        other = others[run // len(names) % len(others)] if kind is Kind.OF_ONE else None
        made.append(_judged(rng, figures, here, kind, other))
    sums = {
        field.name: sum(getattr(one, field.name) for one in made) for field in fields(Run) if field.name != "seconds"
    }
    return Row(
        f"{name}, {kind.value}", len(figures), runs, **sums, seconds=statistics.median(one.seconds for one in made)
    )


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run; a count of 0 or 1 each, except of tests that raced."""

    alarms: int
    environment: int
    red: int
    suspect: int
    undecided: int
    found: int
    steady: int
    found_steady: int
    raced: int
    seconds: float


def _judged(rng: np.random.Generator, figures: Sequence[Figure], here: str, kind: Kind, other: str | None) -> Run:
    """Judge one unchanged run, and one figure slowed."""
    drawn_figures = _run(rng, figures, here, kind, other)
    known_here = here if kind is Kind.KNOWN else ""
    histories = [History.of(record, known_here) for _, record, _ in drawn_figures]
    rule = Rule.of(Policy(), histories, len(histories))
    calm = [
        taken(rule, history, ys, host=figure.host)
        for history, (figure, _, ys) in zip(histories, drawn_figures, strict=True)
    ]
    slow = int(rng.integers(len(drawn_figures)))
    figure, _, ys = drawn_figures[slow]
    found = taken(rule, histories[slow], ys, SLOWER, host=figure.host).regressed
    steady = histories[slow].spread <= STEADY
    tests: dict[str, list[Course]] = {}
    for (figure, _, _), course in zip(drawn_figures, calm, strict=True):
        tests.setdefault(figure.test, []).append(course)
    clearing = sum(max(one.clearing for one in courses) for courses in tests.values())
    blocks = [max(one.blocks for one in courses) for courses in tests.values()]
    launches = clearing + BLOCK * sum(blocks)
    environment = any(one.environment and (one.gross or known_here) for one in calm)
    alarms, undecided = any(one.regressed for one in calm), any(one.undecided for one in calm)
    return Run(
        alarms=alarms,
        environment=any(one.environment for one in calm),
        red=alarms or environment,
        suspect=any(one.suspect for one in calm),
        undecided=undecided,
        found=found,
        steady=steady,
        found_steady=steady and found,
        raced=sum(count > 0 for count in blocks),
        seconds=SECONDS_A_TEST * launches + SECONDS_TO_RACE * any(blocks),
    )


def _run(
    rng: np.random.Generator, figures: Sequence[Figure], here: str, kind: Kind, other: str | None
) -> list[tuple[Figure, dict[str, list[float]], list[float]]]:
    """The figures that both have, with their records by machine, and today's launches."""
    found = []
    for figure in figures:
        if here not in figure.machines:
            continue
        record = {
            name: list(launches.values())
            for name, launches in figure.machines.items()
            if name != here and kind is not Kind.OF_ONE
        }
        if kind is Kind.KNOWN:
            record[here] = drawn(rng, figure, here, KNOWN)
        if other in figure.machines:
            record[other] = drawn(rng, figure, other, OF_ONE)
        if record:
            found.append((figure, record, drawn(rng, figure, here, TODAY)))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; with --check 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=FILES, metavar="FILE")
    parser.add_argument("--runs", type=at_least_1, default=1000, help="for each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a promise is broken")
    options = parser.parse_args(argv)
    print(HEAD)
    broken: list[str] = []
    ran = 0
    items = collected(ROOT)
    for file in options.files:
        figures = figures_of(json.loads(file.read_text()), items)
        for kind in Kind:
            try:
                one = row(
                    file.stem.partition("-nv")[0].replace("-nvidia-", " "), figures, kind, options.runs, options.seed
                )
            except LookupError as error:
                print(f"{file.stem} lacks {error}")
                continue
            ran += 1
            print(one, flush=True)
            broken += _broken(one, kind)
    if not ran:
        broken.append("no file could be drawn from")
    print(*(f"BROKEN: {line}\n" for line in broken), sep="", end="")
    return int(options.check and bool(broken))


def _broken(one: Row, kind: Kind) -> Iterator[str]:
    """Yield the promises that a row breaks; a record of one machine promises nothing."""
    surely, _ = wilson(one.red, one.runs)
    if kind is not Kind.OF_ONE and surely > FALSE_ALARMS_AT_MOST:
        yield f"{one.name}: {one.red} of {one.runs} unchanged runs are red"
    if kind is not Kind.OF_ONE and one.seconds > SECONDS_AT_MOST:
        yield f"{one.name}: half of the unchanged runs take {one.seconds:.0f} s more"


if __name__ == "__main__":
    sys.exit(main())
