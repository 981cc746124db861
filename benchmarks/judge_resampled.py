"""What the rule does with launches as they were recorded on real GPUs, drawn again.

    python benchmarks/judge_resampled.py [--runs 1000] [--seed 1] [--check] [FILE ...]

FILE is a file of baselines; those of 2 and 4 x H200 by default. Launches whose GPUs are unknown count as one machine's.
In turn each machine is the one of today's run. A run on a *new* machine has the other machines' launches as its record.
A run on a *known* machine has as many launches of each machine as were recorded, drawn again with replacement. Today's
launches are drawn with replacement from those of today's machine; all figures of a launch are drawn together. A rate
that is made of a time is no second figure. Each figure takes the whole way of a run (``simulated/course.py``).

In a run of its own, one figure at random is slower by 5 %. Suspects are the unchanged runs with any.

The rule before is held against the same draws: how many unchanged runs it accuses, what it finds, and its launches.

--check fails if more than 1 % of the unchanged runs accuse the code, or if more than a third of those on known GPUs
have a suspect.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.judge_simulation import FALSE_ALARMS_AT_MOST, at_least_1, wilson
from benchmarks.simulated.before import Before
from benchmarks.simulated.before import known as before_of
from benchmarks.simulated.course import launches_of, taken
from benchmarks.simulated.noise import TODAY
from pytest_gpuperf.verdicts.history import FEWEST_KNOWN, History, distinct
from pytest_gpuperf.verdicts.rule import Policy, Rule

ROOT = Path(__file__).resolve().parents[1]
FILES = [ROOT / "baselines" / f"{count}x-nvidia-h200-nv18.json" for count in (2, 4)]
SLOWER = math.log(1.05)
SUSPECT_AT_MOST = 1 / 3

Machines: TypeAlias = dict[str, dict[str, float]]
"""Logarithms of one figure by machine and launch."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of the runs on the machines of one file."""

    name: str
    figures: int
    runs: int
    alarms: int
    environment: int
    suspect: int
    undecided: int
    found: int
    launches: int
    before_alarms: int
    before_found: int
    before_launches: int

    def __str__(self) -> str:
        """A line of the table."""
        low, high = wilson(self.alarms, self.runs)
        shares = "".join(f"{count / self.runs:>13.3f}" for count in (self.environment, self.suspect, self.undecided))
        alarms = f"{self.alarms / self.runs:.4f} ({low:.4f}-{high:.4f})"
        return (
            f"{self.name:<30}{self.figures:>8}{alarms:>25}{shares}{self.found / self.runs:>8.3f}"
            f"{self.launches / self.runs:>10.2f}   {self.before_alarms / self.runs:>8.3f}"
            f"{self.before_found / self.runs:>8.3f}{self.before_launches / self.runs:>10.2f}"
        )


HEAD = (
    f"{'machine of today':<30}{'figures':>8}{'accuse the code (95 %)':>25}{'environment':>13}{'suspect':>13}"
    f"{'undecided':>13}{'power':>8}{'launches':>10}   {'before:':>8}{'power':>8}{'launches':>10}"
)


def figures_of(data: Mapping[str, Any]) -> list[Machines]:
    """The figures of a file of baselines, each once, larger is worse."""
    gpus = {id_: info.get("gpus", "") for id_, info in data["launches"].items()}
    found = []
    for entry in data["tests"].values():
        metrics = [_logs(metric, gpus) for metric in entry["metrics"].values()]
        histories = [History.of(_plain(machines), "") for machines in metrics]
        once = distinct(histories)
        found += [
            machines
            for machines, history in zip(metrics, histories, strict=True)
            if any(history is one for one in once)
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


def drawn(rng: np.random.Generator, ids: Sequence[str], count: int) -> list[str]:
    """Launches, with replacement."""
    return [ids[index] for index in rng.integers(0, len(ids), count)]


def row(name: str, figures: Sequence[Machines], known: bool, runs: int, seed: int) -> Row:
    """Run on each machine of a file in turn.

    Raises:
        LookupError: the file has no machine to run on, or none to hold it against; says what it lacks.
    """
    rng = np.random.default_rng(seed)
    names = sorted({machine for machines in figures for machine in machines})
    if known:
        names = [one for one in names if all(len(machines.get(one, ())) >= FEWEST_KNOWN for machines in figures)]
    if len(names) < (1 if known else 2):
        raise LookupError(f"a machine with {FEWEST_KNOWN} launches of every figure" if known else "a second machine")
    counts = dict.fromkeys((field.name for field in fields(Row)[3:]), 0)
    for run in range(runs):
        here = names[run % len(names)]
        records, today = _run(rng, figures, here, known)
        _count(counts, records, today, here, int(rng.integers(len(records))))
    return Row(f"{name}, {'known' if known else 'new'}", len(figures), runs, **counts)


def _count(
    counts: dict[str, int],
    records: Sequence[Mapping[str, list[float]]],
    today: Sequence[list[float]],
    here: str,
    slow: int,
) -> None:
    """Judge one run by both rules, and one figure slowed."""
    histories = [History.of(record, here) for record in records]
    rule = Rule.of(Policy(), histories, len(histories))
    calm = [taken(rule, history, ys) for history, ys in zip(histories, today, strict=True)]
    counts["alarms"] += any(one.regressed for one in calm)
    counts["environment"] += any(one.environment for one in calm)
    counts["suspect"] += any(one.suspect for one in calm)
    counts["undecided"] += any(one.undecided for one in calm)
    counts["launches"] += launches_of(calm)
    counts["found"] += taken(rule, histories[slow], today[slow], SLOWER).regressed
    before = [before_of(record, here) for record in records]
    old = Before.of(before)
    judged = [old.judged(one, ys) for one, ys in zip(before, today, strict=True)]
    counts["before_alarms"] += any(regressed for regressed, _ in judged)
    counts["before_launches"] += max(launches for _, launches in judged)
    counts["before_found"] += old.judged(before[slow], [y + SLOWER for y in today[slow]])[0]


def _run(
    rng: np.random.Generator, figures: Sequence[Machines], here: str, known: bool
) -> tuple[list[dict[str, list[float]]], list[list[float]]]:
    """The records by machine, and today's launches, of the figures that both have."""
    ids: dict[str, list[str]] = {}
    for machines in figures:
        for name, launches in machines.items():
            ids.setdefault(name, list(launches))
    again = {name: drawn(rng, found, len(found)) for name, found in ids.items()}
    of_today = drawn(rng, ids[here], TODAY)
    records, today = [], []
    for machines in figures:
        record = {
            name: [launches[id_] for id_ in again[name] if id_ in launches] if known else list(launches.values())
            for name, launches in machines.items()
            if known or name != here
        }
        ys = [machines.get(here, {})[id_] for id_ in of_today if id_ in machines.get(here, {})]
        if len(ys) == TODAY and any(record.values()):
            records.append(record)
            today.append(ys)
    return records, today


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; with --check 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=FILES, metavar="FILE")
    parser.add_argument("--runs", type=at_least_1, default=1000, help="for each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a promise is broken")
    options = parser.parse_args(argv)
    print(HEAD)
    broken, ran = [], 0
    for file in options.files:
        figures = figures_of(json.loads(file.read_text()))
        for known in (False, True):
            try:
                one = row(file.stem.partition("-")[0], figures, known, options.runs, options.seed)
            except LookupError as error:
                print(f"{file.stem} lacks {error}")
                continue
            ran += 1
            print(one, flush=True)
            if one.alarms > FALSE_ALARMS_AT_MOST * one.runs:
                broken.append(f"{one.name}: {one.alarms} of {one.runs} unchanged runs accuse the code")
            if known and one.suspect > SUSPECT_AT_MOST * one.runs:
                broken.append(f"{one.name}: {one.suspect} of {one.runs} unchanged runs have a suspect")
    if not ran:
        broken.append("no file could be drawn from")
    print(*(f"BROKEN: {line}\n" for line in broken), sep="", end="")
    return int(options.check and bool(broken))


if __name__ == "__main__":
    sys.exit(main())
