"""A tournament of hosts: pairs measure at the same time, round by round, and what is slow is named.

To measure every pair of n hosts takes n - 1 rounds of n / 2 pairs that share no host. A tournament plays some of those
rounds, twice the logarithm of n: so each host meets as many partners. A host's loss is the median over its partners,
which a slow partner does not move as long as most are well. What is left of a pair's loss is the link's between them.
Both are held against the same bound as any metric of a fleet.

Few hosts, or pairs, do not know their spread. Of fewer than eight the slowest is named if it loses a tenth or more
against each of the others: then no slow link of its partner explains it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.features.fleet.outliers import CHANCE, FEW, Standing, compare, find_odd_hosts
from pytest_gpuperf.features.fleet.results_of_hosts import Figure

Pair = tuple[str, str]
_BETWEEN = " - "
_INDEPENDENT = 0.66  # of the hosts' medians: two that met share a metric; in simulations of 8 to 64 hosts
LEAST_ROUNDS = 3  # a median of two partners is no more robust than their mean


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which hosts and which links are slow."""

    hosts: tuple[Standing, ...]
    """The slowest first; their values are medians of bandwidths over partners."""
    links: tuple[tuple[Pair, float], ...]
    """Pairs of hosts that are well with others and slow together, with the loss as a fraction; the slowest first."""


def plan_rounds(hosts: Sequence[str], count: int | None = None) -> list[list[Pair]]:
    """Pairs of hosts by round; no host is in two pairs of a round, and no pair in two rounds.

    The circle method: all hosts but one move on by a place in each round. With an odd number, each round leaves one
    host out, and never the same twice.

    Args:
        hosts: by name.
        count: how many rounds; None for twice the logarithm to base 2 of the hosts, rounded up.

    Raises:
        ValueError: fewer than two hosts, or a name twice.
    """
    if len(hosts) < 2 or len(set(hosts)) < len(hosts):
        raise ValueError(
            f"a tournament is of 2 hosts or more with names of their own, got {', '.join(hosts) or 'none'}"
        )
    seats: list[str | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    fixed, circle = seats[0], seats[1:]
    wanted = max(LEAST_ROUNDS, 2 * math.ceil(math.log2(len(hosts)))) if count is None else count
    played = []
    for turn in range(min(wanted, len(circle))):
        order = [fixed, *circle[turn:], *circle[:turn]]
        couples = zip(order[: len(order) // 2], reversed(order[len(order) // 2 :]), strict=True)
        played.append([(one, other) for one, other in couples if one is not None and other is not None])
    return played


def judge(bandwidths: Mapping[Pair, float], chance: float = CHANCE) -> Outcome:
    """Names slow hosts, and slow links between hosts that are well.

    Args:
        bandwidths: of the pairs that were measured; in any one unit.
        chance: how likely any host is accused wrongly, and any link.
    """
    middle = statistics.median(bandwidths.values())
    losses = {pair: math.log(middle / value) for pair, value in bandwidths.items()}
    slow: list[Standing] = []
    # The slowest first, and without its pairs the next: else hosts that met several slow ones would look slow.
    while found := _find_slow("host", _compute_medians(losses), middle, chance):
        slow.append(found[0])
        losses = {pair: loss for pair, loss in losses.items() if found[0].host not in pair}
    hosts = _compute_losses_beside(losses)
    # The slower of two hosts explains what their pair has lost.
    left = {pair: loss - max(hosts[host, pair] for host in pair) for pair, loss in losses.items()}
    named = {_BETWEEN.join(pair): pair for pair in left}
    links = _find_slow("link", {name: left[pair] for name, pair in named.items()}, middle, chance)
    return Outcome(tuple(slow), tuple((named[one.host], -math.expm1(-one.loss)) for one in links))


def _compute_medians(losses: Mapping[Pair, float]) -> dict[str, float]:
    return {host: statistics.median(found.values()) for host, found in _group_by_host(losses).items()}


def _compute_losses_beside(losses: Mapping[Pair, float]) -> dict[tuple[str, Pair], float]:
    """The loss of each host for each of its pairs: over its other partners, if there are enough of them.

    A pair that is its host's own median has nothing left. Many such pairs make the spread of all look small, and then
    chance accuses the others.
    """
    few = len(losses) < FEW
    beside = {}
    for host, found in _group_by_host(losses).items():
        for pair in found:
            others = [loss for other, loss in found.items() if other != pair or few]
            beside[host, pair] = statistics.median(others or found.values())
    return beside


def _group_by_host(losses: Mapping[Pair, float]) -> dict[str, dict[Pair, float]]:
    of_host: dict[str, dict[Pair, float]] = {}
    for pair, loss in losses.items():
        for host in pair:
            of_host.setdefault(host, {})[pair] = loss
    return of_host


def _find_slow(name: str, losses: Mapping[str, float], middle: float, chance: float) -> tuple[Standing, ...]:
    values = {one: middle * math.exp(-loss) for one, loss in losses.items()}
    figure = Figure("tournament", name, "B/s", "higher", values)
    if len(values) < FEW:
        return find_odd_hosts(figure, max)[:1]
    independent = _INDEPENDENT if name == "host" else 1.0
    return tuple(standing for found in compare([figure], chance, independent) for standing in found.slow)
