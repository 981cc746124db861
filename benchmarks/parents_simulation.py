"""Simulated races of which launches have which parent process: false alarms and power.

    python benchmarks/parents_simulation.py [--suites 100]

Ranks are forked, so launches of one parent share its addresses, and a figure differs between parents by a spread of
its own. Each row is a number of figures that race without a record, and these two spreads; each column is a choice:
one parent for each arm of a race, one for each block of each arm, of which three must have run before an accusation,
and one for each launch. A cell has the share of suites of unchanged code with an accusation, the share of figures
slower by 5 % that are accused, and the blocks that a race of the latter takes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_gpuperf.verdicts.race import MOST_BLOCKS, Decision
from pytest_gpuperf.verdicts.rule import Policy, Rule

SLOWER = math.log(1.05)
FIGURES = (6, 100)
WITHIN = (0.005, 0.015)
BETWEEN = (0.0, 0.005, 0.01, 0.02)
CHOICES = ("arm", "block", "launch")
FEWEST_BLOCKS = {"arm": 1, "block": 3, "launch": 1}


def arm(choice: str, within: float, between: float, draw: random.Random) -> list[float]:
    """The launches of one arm in a whole race."""
    every = {"arm": 2 * MOST_BLOCKS, "block": 2, "launch": 1}[choice]
    parents = [draw.gauss(0.0, between) for _ in range(2 * MOST_BLOCKS)]
    return [parents[number // every] + draw.gauss(0.0, within) for number in range(2 * MOST_BLOCKS)]


def race(rule: Rule, choice: str, launches: Callable[[], list[float]], loss: float) -> tuple[Decision, int]:
    """How a race of one figure ends, and after how many blocks."""
    a, b = launches(), [log + loss for log in launches()]
    for block in range(1, MOST_BLOCKS + 1):
        decision = rule.race(None, a[: 2 * block], b[: 2 * block]).decision
        if decision is Decision.ACCUSED and block < FEWEST_BLOCKS[choice]:
            continue
        if decision is not Decision.OPEN:
            return decision, block
    return Decision.OPEN, MOST_BLOCKS


def cell(figures: int, within: float, between: float, choice: str, suites: int) -> str:
    """False alarms, power and blocks."""
    rule, draw = Rule.of(Policy(), (), figures), random.Random(1)

    def suite(loss: float) -> list[tuple[Decision, int]]:
        return [race(rule, choice, lambda: arm(choice, within, between, draw), loss) for _ in range(figures)]

    def accused(found: Sequence[tuple[Decision, int]]) -> int:
        return sum(decision is Decision.ACCUSED for decision, _ in found)

    alarms = statistics.fmean(accused(suite(0.0)) > 0 for _ in range(suites))
    slower = list(itertools.chain(*(suite(SLOWER) for _ in range(max(1, 4 * suites // figures)))))
    blocks = statistics.fmean(count for _, count in slower)
    return f"{alarms:.3f} {accused(slower) / len(slower):.2f} {blocks:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", type=int, default=100, help="of each cell (default 100)")
    suites = parser.parse_args(argv).suites
    print("{:<10}{:<10}{:<10}".format("figures", "within", "between") + "".join(f"{name:<18}" for name in CHOICES))
    for figures, within, between in itertools.product(FIGURES, WITHIN, BETWEEN):
        cells = [cell(figures, within, between, choice, suites) for choice in CHOICES]
        print(f"{figures:<10}{within:<10.1%}{between:<10.1%}" + "".join(f"{one:<18}" for one in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
