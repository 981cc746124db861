"""What the rule does where baselines and runs come from several machines, with the control workload and without.

    python benchmarks/judge_machines.py [--suites 400] [--seed 1] [--json FILE] [--check]

Simulated suites of 100 checks, a quarter of them at the GPUs' power limit. How fast a GPU is there differs from one to
the next: each machine has an effect, normal with a standard deviation of 2 %, by which the control workload is slower,
and each check at the limit by 0.5 to 1 times as much; the others are not. A launch's own noise is that of
judge_simulation.py, normal and sigma_b 0.5 %, the control workload's 0.3 %. The 20 launches of the baselines are spread
evenly over so many machines, and the run is on another one. Every suite is judged as it is, and with all checks slower
by 5 %. "May be the machine's" are slowdowns of checks at the limit that the control workload explains; of the rest some
are hidden by a machine that is faster than those of the baselines.

Needs numpy. Exit status 0; with --check 1 if more than 1 % of the suites raise a false alarm with the control workload.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.judge_simulation import CHECKS, SLOWDOWN, Array, at_least_1, launches, sigmas, wilson
from pytest_gpuperf.verdicts.rule import History, Policy, Rule

MACHINES = (1, 2, 4)  # of the baselines
LAUNCHES = 20  # in the baselines
EFFECT = 0.02
AT_LIMIT = CHECKS // 4
SHARE = (0.5, 1.0)
SIGMA_B = 0.005
CONTROL_SIGMA = 0.003
FALSE_ALARMS_AT_MOST = 0.01


@dataclass(frozen=True, slots=True)
class Row:
    """What came of the suites whose baselines were recorded on so many machines."""

    machines: int
    suites: int
    alarms_without: int
    """Suites with a false alarm, if the control workload is not looked at."""
    alarms: int
    found_at_limit: int
    """Slowdowns of checks at the power limit that were found."""
    found: int
    """Of the others."""
    not_told: int
    """Slowdowns of checks at the power limit that were found, but may be the machine's."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Logarithms of figures: a row for each check, or one for the control workload; a column for each launch."""

    machines: int
    """Of the old launches."""
    old: Array
    fresh: Array
    old_control: Array
    fresh_control: Array


def drawn(rng: np.random.Generator, machines: int) -> Suite:
    """A suite, of which the first AT_LIMIT checks are at the power limit."""
    count = 1 + Policy().kmax
    effects = EFFECT * rng.standard_normal(machines + 1)
    where = np.concatenate([np.arange(LAUNCHES) % machines, np.full(count, machines)])
    shares = np.concatenate([rng.uniform(*SHARE, AT_LIMIT), np.zeros(CHECKS - AT_LIMIT)])
    noise = launches(rng, "normal", sigmas(rng, SIGMA_B, CHECKS), LAUNCHES + count)
    logs = noise + shares[:, None] * effects[where]
    control = effects[where] + CONTROL_SIGMA * rng.standard_normal(LAUNCHES + count)
    return Suite(machines, logs[:, :LAUNCHES], logs[:, LAUNCHES:], control[:LAUNCHES], control[LAUNCHES:])


@dataclass(frozen=True, slots=True)
class Found:
    """What the rule says of one check."""

    regressed: bool
    explained: bool = False
    """Whether its loss may be the machine's."""


def judged(suite: Suite, slower: float) -> list[Found]:
    """Every check of the suite, slower by this logarithm."""
    histories = [History.of(row) for row in suite.old.tolist()]
    rule = Rule.of(Policy(), histories)
    machines = [suite.old_control[np.arange(LAUNCHES) % suite.machines == machine] for machine in range(suite.machines)]
    control = History.within([machine.tolist() for machine in machines])
    of_control = Rule.of(Policy(), [control], 2)
    found = []
    for index, (history, row) in enumerate(zip(histories, (suite.fresh + slower).tolist(), strict=True)):
        k = rule.launches(history)
        if k is None or not rule.suspects(history, row[0]):
            found.append(Found(False))
            continue
        confirmed = rule.confirm(history, row[1 : 1 + k])
        looks = suite.fresh_control[: 1 + k].tolist()
        slower_machine = statistics.median(looks) - control.center if of_control.moved(control, looks) else 0.0
        explained = index < AT_LIMIT and rule.explains(slower_machine, confirmed.loss, history, k)
        found.append(Found(confirmed.regressed, confirmed.regressed and explained))
    return found


def row(machines: int, suites: int, seed: int) -> Row:
    """Simulates suites, each as it is and slowed down."""
    rng = np.random.default_rng([seed, machines])
    alarms_without = alarms = found_at_limit = found = not_told = 0
    for _ in range(suites):
        suite = drawn(rng, machines)
        calm, slow = judged(suite, 0.0), judged(suite, math.log(SLOWDOWN))
        alarms_without += any(check.regressed for check in calm)
        alarms += any(check.regressed and not check.explained for check in calm)
        told = [check.regressed and not check.explained for check in slow]
        found_at_limit += sum(told[:AT_LIMIT])
        found += sum(told[AT_LIMIT:])
        not_told += sum(check.explained for check in slow)
    return Row(machines, suites, alarms_without, alarms, found_at_limit, found, not_told)


def table(rows: Sequence[Row]) -> list[str]:
    """A line for each number of machines."""
    lines = [
        f"{'machines':<10}{'suite false alarms':<25}{'without the control':<22}{'power at +5 %, others':<24}"
        f"{'at the limit':<15}may be the machine's"
    ]
    for one in rows:
        low, high = wilson(one.alarms, one.suites)
        at_limit, others = one.suites * AT_LIMIT, one.suites * (CHECKS - AT_LIMIT)
        lines.append(
            f"{one.machines:<10}{f'{one.alarms / one.suites:.4f}  {low:.4f}-{high:.4f}':<25}"
            f"{one.alarms_without / one.suites:<22.3f}{one.found / others:<24.3f}{one.found_at_limit / at_limit:<15.3f}"
            f"{one.not_told / at_limit:.3f}"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; with --check 1 if the promise about false alarms is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", type=at_least_1, default=400, help="for each number of machines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit status 1 if false alarms are more than promised")
    options = parser.parse_args(argv)
    rows = [row(machines, options.suites, options.seed) for machines in MACHINES]
    print(*table(rows), sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps({"seed": options.seed, "rows": [asdict(one) for one in rows]}) + "\n")
    kept = all(one.alarms <= FALSE_ALARMS_AT_MOST * one.suites for one in rows)
    return int(options.check and not kept)


if __name__ == "__main__":
    sys.exit(main())
