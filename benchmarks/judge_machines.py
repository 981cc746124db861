"""What the judge does where baselines and runs come from several machines, with the control workload and without.

    python benchmarks/judge_machines.py [--suites 200] [--seed 1] [--json FILE] [--check]

Simulated suites of 100 checks, a quarter of them at the GPUs' power limit. How fast a GPU is there differs from one to
the next: each machine has an effect, normal with a standard deviation of 2 %, by which the control workload is slower,
and each check at the limit by 0.5 to 1 times as much; the others are not. A launch's own noise is that of
judge_simulation.py, normal and sigma_b 0.5 %, the control workload's 0.3 %. A row says how many launches of each
machine are in the baselines, and whether the run is on the last of these machines or on yet another one. Every suite is
judged as it is, and with all checks slower by 5 %. "May be the GPUs'" are slowdowns of checks at the limit that the
control workload explains; of the rest some are hidden by GPUs that are faster than those of the baselines.

Needs numpy. Exit status 0; with --check 1 if, with the control workload, more than 1 % of the suites of a row raise a
false alarm whose baselines have five launches of each machine.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.judge_simulation import CHECKS, SLOWDOWN, Array, at_least_1, launches, sigmas, wilson
from pytest_gpuperf.baselines.schema import (
    LEAST_LAUNCHES,
    Baselines,
    LaunchFigure,
    LaunchInfo,
    MetricBaseline,
    TestBaseline,
)
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.controls import Control
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy

EFFECT = 0.02
AT_LIMIT = CHECKS // 4
SHARE = (0.5, 1.0)
SIGMA_B = 0.005
CONTROL_SIGMA = 0.003
FALSE_ALARMS_AT_MOST = 0.01

KEY, WORLD_SIZE, PART = "2x-simulated", 2, "sustained matmul on 2 ranks"
SOFTWARE = {"torch": "simulated"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Where launches come from."""

    launches: tuple[int, ...]
    """In the baselines, of each machine."""
    known: bool
    """Whether the run is on the last of these machines, and not on another one."""

    def __str__(self) -> str:
        """As 10 + 5, or 20 x 1."""
        counts = self.launches
        several = len(counts) > 2 and len(set(counts)) == 1
        return f"{len(counts)} x {counts[0]}" if several else " + ".join(map(str, counts))

    @property
    def promised(self) -> bool:
        """Whether the rule's promise is held against it."""
        return min(self.launches) >= LEAST_LAUNCHES


SHAPES = (
    Shape((20,), known=True),
    Shape((20,), known=False),
    Shape((10, 10), known=False),
    Shape((5,) * 4, known=False),
    Shape((5,) * 4, known=True),
    Shape((15, 5), known=False),
    Shape((15, 5), known=True),
    Shape((1,) * 20, known=False),
)


@dataclass(frozen=True, slots=True)
class Row:
    """What came of the suites of one shape."""

    shape: Shape
    suites: int
    alarms_without: int
    """Suites with a false alarm, if the control workload is not looked at."""
    alarms: int
    found_at_limit: int
    """Slowdowns of checks at the power limit that were found."""
    found: int
    """Of the others."""
    not_told: int
    """Slowdowns of checks at the power limit that were found, but may be the GPUs'."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Logarithms of times: a row for each check, or one for the control workload; a column for each launch."""

    shape: Shape
    old: Array
    fresh: Array
    old_control: Array
    fresh_control: Array


def drawn(rng: np.random.Generator, shape: Shape) -> Suite:
    """A suite, of which the first AT_LIMIT checks are at the power limit."""
    count, machines, old = 1 + Policy().kmax, len(shape.launches), sum(shape.launches)
    effects = EFFECT * rng.standard_normal(machines + 1)
    run_on = machines - 1 if shape.known else machines
    where = np.concatenate([np.repeat(np.arange(machines), shape.launches), np.full(count, run_on)])
    shares = np.concatenate([rng.uniform(*SHARE, AT_LIMIT), np.zeros(CHECKS - AT_LIMIT)])
    noise = launches(rng, "normal", sigmas(rng, SIGMA_B, CHECKS), old + count)
    logs = noise + shares[:, None] * effects[where]
    control = effects[where] + CONTROL_SIGMA * rng.standard_normal(old + count)
    return Suite(shape, logs[:, :old], logs[:, old:], control[:old], control[old:])


@dataclass(frozen=True, slots=True)
class Found:
    """What the judge says of one check."""

    regressed: bool
    explained: bool = False
    """Whether its loss may be the GPUs'."""


def judge_of(suite: Suite) -> Judge:
    """The judge of a run of the suite."""
    machines = [f"machine {index}" for index, count in enumerate(suite.shape.launches) for _ in range(count)]
    infos = {
        f"launch {index}": LaunchInfo("", "", "", SOFTWARE, {PART: math.exp(seconds)}, gpus)
        for index, (gpus, seconds) in enumerate(zip(machines, suite.old_control.tolist(), strict=True))
    }
    tests = {}
    for check, logs in enumerate(suite.old.tolist()):
        figures = tuple(LaunchFigure(id_, 50, math.exp(log)) for id_, log in zip(infos, logs, strict=True))
        tests[f"test {check}"] = TestBaseline("", {"time": MetricBaseline("s", "lower", "", figures)})
    here = machines[-1] if suite.shape.known else "another"
    return Judge(KEY, Baselines(KEY, {}, infos, tests), tests, Policy(), gpus=here)


def judged(suite: Suite, slower: float) -> list[Found]:
    """Every check of the suite, slower by this logarithm."""
    judge = judge_of(suite)
    found = []
    for seconds in suite.fresh_control[: 1 + Policy().kmin].tolist():
        judge.controls.add(WORLD_SIZE, {PART: Control(math.exp(seconds), power_capped=True)}, SOFTWARE)
    for check, row in enumerate(np.exp(suite.fresh + slower).tolist()):
        at_limit = check < AT_LIMIT
        figures = [Metric(seconds, "s", "lower", power_capped=at_limit) for seconds in row]
        verdict = judge.screen(f"test {check}", "time", figures[0], "")
        if verdict.outcome is Outcome.SUSPECT:
            verdict = judge.confirm(verdict, figures[1 : 1 + judge.launches(verdict)])
        regressed = verdict.outcome is Outcome.REGRESSED
        explained = judge.explained(verdict, WORLD_SIZE, at_limit=at_limit) if regressed else None
        found.append(Found(regressed, explained is not None))
    return found


def row(shape: Shape, suites: int, seed: int) -> Row:
    """Simulates suites, each as it is and slowed down."""
    rng = np.random.default_rng([seed, *shape.launches, shape.known])
    alarms_without = alarms = found_at_limit = found = not_told = 0
    for _ in range(suites):
        suite = drawn(rng, shape)
        calm, slow = judged(suite, 0.0), judged(suite, math.log(SLOWDOWN))
        alarms_without += any(check.regressed for check in calm)
        alarms += any(check.regressed and not check.explained for check in calm)
        told = [check.regressed and not check.explained for check in slow]
        found_at_limit += sum(told[:AT_LIMIT])
        found += sum(told[AT_LIMIT:])
        not_told += sum(check.explained for check in slow)
    return Row(shape, suites, alarms_without, alarms, found_at_limit, found, not_told)


def table(rows: Sequence[Row]) -> list[str]:
    """A line for each shape."""
    lines = [
        f"{'launches':<10}{'run on':<10}{'suite false alarms':<25}{'without the control':<21}"
        f"{'power at +5 %, others':<23}{'at the limit':<14}may be the GPUs'"
    ]
    for one in rows:
        low, high = wilson(one.alarms, one.suites)
        at_limit, others = one.suites * AT_LIMIT, one.suites * (CHECKS - AT_LIMIT)
        lines.append(
            f"{one.shape!s:<10}{'the last' if one.shape.known else 'another':<10}"
            f"{f'{one.alarms / one.suites:.4f}  {low:.4f}-{high:.4f}':<25}{one.alarms_without / one.suites:<21.3f}"
            f"{one.found / others:<23.3f}{one.found_at_limit / at_limit:<14.3f}{one.not_told / at_limit:.3f}"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; with --check 1 if the promise about false alarms is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", type=at_least_1, default=200, help="for each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit status 1 if false alarms are more than promised")
    options = parser.parse_args(argv)
    rows = [row(shape, options.suites, options.seed) for shape in SHAPES]
    print(*table(rows), sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps({"seed": options.seed, "rows": [asdict(one) for one in rows]}) + "\n")
    kept = all(one.alarms <= FALSE_ALARMS_AT_MOST * one.suites for one in rows if one.shape.promised)
    return int(options.check and not kept)


if __name__ == "__main__":
    sys.exit(main())
