"""How often a tournament names the slow hosts and links, and nothing else.

    python benchmarks/tournament_simulation.py [--runs 100] [--hosts 64] [--seed 1] [--check]

Virtual hosts measure the bandwidth of each pair that a tournament plays; figures scatter as logarithms of a normal
distribution. Three hosts have a port that is 10 % slower, and one link between two other hosts is 10 % slower. A run
is right if exactly these are named. The rule is imported, not copied. --check fails unless 99 of 100 runs are right,
and unless at most 1 of 100 without a slow part names any.

Then 8 hosts with 8 GPUs each are accepted, as suites/multi_node does it. All GPUs of one host are 10 % slower, and the
host is to be named in 90 of 100 runs. Of ten times as many runs without a slow part, at most 3 of 1000 may name any.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_gpuperf.features.fleet.acceptance import find_slow_parts
from pytest_gpuperf.features.fleet.tournament import judge, plan_rounds
from tests.fleet.clusters import NOISE, figures
from tests.fleet.clusters import names as hosts_of

SLOWDOWN, SLOW_HOSTS = 0.10, 3
NOISES = (0.005, 0.01)
"""Spreads of one measurement."""
RIGHT_AT_LEAST, ACCUSED_AT_MOST = 0.99, 0.01
HOSTS, GPUS, HEALTHY = 8, 8, 10
"""The size of a cluster that is accepted, and how many runs without a slow part come with one that has a slow host."""
ACCEPTED_RIGHT_AT_LEAST, ACCEPTED_ACCUSED_AT_MOST = 0.9, 0.003


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of simulated tournaments."""

    runs: int
    hosts_found: int
    """In which exactly the slow hosts were named."""
    links_found: int
    """In which exactly the slow link was named."""
    accused: int
    """Runs in which a part was named, of as many runs without a slow part."""

    @property
    def kept(self) -> bool:
        """Whether what is promised holds."""
        found = min(self.hosts_found, self.links_found)
        return found >= RIGHT_AT_LEAST * self.runs and self.accused <= ACCUSED_AT_MOST * self.runs


@dataclass(frozen=True, slots=True)
class Acceptances:
    """What came of simulated acceptances."""

    runs: int
    right: int
    """In which exactly the slow host was named."""
    accused: int
    """Runs in which a part was named, of ``HEALTHY`` times as many runs without a slow part."""

    @property
    def kept(self) -> bool:
        """Whether what is promised holds."""
        healthy = HEALTHY * self.runs
        return self.right >= ACCEPTED_RIGHT_AT_LEAST * self.runs and self.accused <= ACCEPTED_ACCUSED_AT_MOST * healthy


def accept(runs: int, seed: int) -> Acceptances:
    """Accepts clusters, each once with a slow host and some times without."""
    rng, right, accused = random.Random(seed), 0, 0
    for _ in range(runs):
        host = rng.choice(hosts_of(HOSTS))
        found = find_slow_parts(*figures(HOSTS, GPUS, rng, {host: SLOWDOWN}))
        right += {(one.part, one.name) for one in found} == {("host", host)}
        accused += sum(bool(find_slow_parts(*figures(HOSTS, GPUS, rng))) for _ in range(HEALTHY))
    return Acceptances(runs, right, accused)


def simulate(runs: int, hosts: int, seed: int, noise: float) -> Tally:
    """Plays tournaments, each once with slow parts and once without."""
    rng = random.Random(seed)
    names = [f"host{number:03}" for number in range(hosts)]
    pairs = [pair for played in plan_rounds(names) for pair in played]
    hosts_found = links_found = accused = 0
    for _ in range(runs):
        well = {pair: 1e11 * rng.lognormvariate(0.0, noise) for pair in pairs}
        outcome = judge(well)
        accused += bool(outcome.hosts or outcome.links)
        slow = set(rng.sample(names, SLOW_HOSTS))
        link = rng.choice([pair for pair in pairs if not slow & set(pair)])
        ill = {pair: value * (1 - SLOWDOWN if slow & set(pair) or pair == link else 1) for pair, value in well.items()}
        outcome = judge(ill)
        hosts_found += {standing.host for standing in outcome.hosts} == slow
        links_found += [pair for pair, _ in outcome.links] == [link]
    return Tally(runs, hosts_found, links_found, accused)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what came of it; 1 with --check if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    played = plan_rounds([str(number) for number in range(options.hosts)])
    print(f"{options.hosts} hosts, {len(played)} rounds of {len(played[0])} pairs, {options.runs} runs")
    kept = True
    for noise in NOISES:
        tally = simulate(options.runs, options.hosts, options.seed, noise)
        kept = kept and tally.kept
        print(
            f"noise {noise:.1%}: exactly the {SLOW_HOSTS} slow hosts named in {tally.hosts_found}, exactly the slow "
            f"link in {tally.links_found}; any named without a slow part in {tally.accused}"
        )
    accepted = accept(options.runs, options.seed)
    print(
        f"{HOSTS} hosts with {GPUS} GPUs each, noise {NOISE:.1%}: exactly the slow host named in {accepted.right} of "
        f"{accepted.runs} runs; any named without a slow part in {accepted.accused} of {HEALTHY * accepted.runs}"
    )
    return 1 if options.check and not (kept and accepted.kept) else 0


if __name__ == "__main__":
    sys.exit(main())
