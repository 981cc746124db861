"""How often the comparison of a fleet names the slow hosts and no other.

    python benchmarks/fleet_simulation.py [--runs 100] [--figures 50] [--seed 1] [--check]

Each simulated fleet has figures that scatter between hosts, as logarithms of a normal distribution. Three hosts are
10 % slower in one figure each. A run is right if exactly these three are accused, each in its figure. The rule is
imported, not copied. --check fails unless 99 of 100 fleets of 200 hosts with a spread of 1 % are right, and unless at
most 1 of 100 fleets without a slow host, of any size and noise, accuses one. Needs numpy.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_gpuperf.features.fleet.outliers import compare
from pytest_gpuperf.features.fleet.results_of_hosts import Figure

SLOWDOWN, SLOW = 0.10, 3
NOISE = {"1 %": (0.01, 0.01), "half 0.2 %, half 3 %": (0.002, 0.03)}
"""Spreads of the even and of the odd figures."""
HOSTS = (8, 16, 40, 200)
RIGHT_AT_LEAST, ACCUSED_AT_MOST = 0.99, 0.01


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of simulated fleets."""

    runs: int
    right: int
    """In which exactly the slow hosts were accused, each in its figure."""
    accused: int
    """Fleets in which a host was accused, of as many fleets without a slow host."""

    def kept(self, *, finds: bool) -> bool:
        """Whether what is promised holds; of fleets in which the slow hosts can be found, that they are."""
        found_enough = not finds or self.right >= RIGHT_AT_LEAST * self.runs
        return found_enough and self.accused <= ACCUSED_AT_MOST * self.runs


def simulate(runs: int, hosts: int, figures: int, seed: int, spreads: tuple[float, float] = NOISE["1 %"]) -> Tally:
    """Simulates fleets, each once with slow hosts and once without."""
    rng = np.random.default_rng(seed)
    right = accused = 0
    for _ in range(runs):
        logs = rng.normal(0.0, np.resize(spreads, figures)[:, None], (figures, hosts))
        accused += bool(found(logs))
        where = set(
            zip(rng.choice(figures, SLOW).tolist(), rng.choice(hosts, SLOW, replace=False).tolist(), strict=True)
        )
        for figure, host in where:
            logs[figure, host] += math.log1p(SLOWDOWN)
        right += found(logs) == where
    return Tally(runs, right, accused)


def found(logs: np.ndarray) -> set[tuple[int, int]]:
    """The figures and hosts that are accused, of times by figure and host."""
    figures = [
        Figure("test", str(index), "s", "lower", {str(host): math.exp(log) for host, log in enumerate(row)})
        for index, row in enumerate(logs.tolist())
    ]
    return {(int(one.figure.name), int(standing.host)) for one in compare(figures) for standing in one.slow}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what came of it; 1 with --check if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--figures", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a promise is broken")
    options = parser.parse_args(arguments)
    print(f"{options.figures} metrics, {SLOW} hosts {SLOWDOWN:.0%} slower in one metric each, {options.runs} fleets")
    print("hosts  spread                right  a false accusation without a slow host")
    broken = False
    for noise, spreads in NOISE.items():
        for hosts in HOSTS:
            tally = simulate(options.runs, hosts, options.figures, options.seed, spreads)
            kept = tally.kept(finds=hosts == max(HOSTS) and noise == "1 %")
            broken |= not kept
            print(f"{hosts:5}  {noise:20}  {tally.right:5}  {tally.accused}{'' if kept else '  BROKEN'}")
    return int(options.check and broken)


if __name__ == "__main__":
    sys.exit(main())
