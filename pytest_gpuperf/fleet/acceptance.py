"""Which host, GPU or link of a cluster is slow, by what GPUs measured alone and hosts in pairs.

A GPU is a host's name and the GPU's number there. Alone, a host is as fast as the better half of its GPUs; the GPUs of
hosts that are well are held against one another. In pairs, GPUs of one number meet, all numbers at once, so each number
is a tournament of its own; a pair of hosts is as fast as its fastest GPUs are.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_gpuperf.figures.metric import Better
from pytest_gpuperf.fleet import tournament
from pytest_gpuperf.fleet.outliers import CHANCE, FEW, Standing, compare, odd_of_few
from pytest_gpuperf.fleet.results_of_hosts import Figure

Gpu: TypeAlias = tuple[str, int]
"""A host, and the number of the GPU there."""
PAIRS = "pairs"
"""What the figure of a tournament is called."""


@dataclass(frozen=True, slots=True)
class Alone:
    """What each GPU measured by itself."""

    name: str
    """In words: matrix products."""
    better: Better
    values: Mapping[Gpu, float]


@dataclass(frozen=True, slots=True)
class Slow:
    """A part of the cluster that is slower than the others of its kind."""

    part: Literal["host", "GPU", "link"]
    name: str
    figure: str
    """In which it is slow."""
    loss: float
    """As a fraction of the bandwidth or the rate."""
    z: float
    """The loss over the spread of all; NaN if there were too few to know a spread."""

    def __str__(self) -> str:
        """The part in words: host gpu-b: 31.0 % slower than the other hosts in pairs (z 12.3)."""
        sure = "" if math.isnan(self.z) else f" (z {self.z:.1f})"
        much = f"{100 * self.loss:.1f} % slower than the other {self.part}s in {self.figure}{sure}"
        return f"{self.part} {self.name}: {much}"


def slow_parts(alone: Sequence[Alone], pairs: Mapping[tuple[Gpu, Gpu], float]) -> tuple[Slow, ...]:
    """Names the slow parts, the slowest first. A host that is named explains its GPUs, and both explain their links.

    Args:
        alone: figures of all GPUs alone.
        pairs: bandwidths of GPUs of one number on two hosts; empty if none were measured.
    """
    numbers = {number for (_, number), _ in pairs}
    # Each figure is held against others as one of GPUs and as one of hosts; pairs by all GPUs and by each number.
    chance = CHANCE / (2 * len(alone) + 2 * (1 + len(numbers)))
    found = [slow for figure in alone for slow in _slow_alone(figure, chance)]
    if pairs:
        found += _slow_in_pairs(pairs, chance)
    return tuple(sorted(found, key=lambda slow: -slow.loss))


def _slow_alone(figure: Alone, chance: float) -> list[Slow]:
    of_host: dict[str, dict[Gpu, float]] = defaultdict(dict)
    for gpu, value in figure.values.items():
        of_host[gpu[0]][gpu] = value
    # First hosts: half of all GPUs that are slow alike are no outliers among GPUs, as of two hosts one.
    better = {(host, 0): _of_better_half(figure, own.values()) for host, own in of_host.items()}
    hosts = {host: one for (host, _), one in _odd(figure, better, chance).items()}
    found = [_slow("host", host, figure.name, one.loss, one.z) for host, one in hosts.items()]
    left = {gpu: value for gpu, value in figure.values.items() if gpu[0] not in hosts}
    if len(left) > len(of_host) - len(hosts):  # else each has one GPU, and was compared already
        gpus = _odd(figure, left, chance)
        found += [_slow("GPU", gpu_name(gpu), figure.name, one.loss, one.z) for gpu, one in gpus.items()]
    return found


def _of_better_half(figure: Alone, values: Collection[float]) -> float:
    """The median of the better half: of a host, whose other GPUs may be slow by themselves."""
    ordered = sorted(values, reverse=figure.better == "higher")
    return statistics.median(ordered[: (len(ordered) + 1) // 2])


def _odd(figure: Alone, values: Mapping[Gpu, float], chance: float) -> dict[Gpu, Standing]:
    """The slow ones of these."""
    gpus = {gpu_name(gpu): gpu for gpu in values}
    compared = Figure("alone", figure.name, "", figure.better, {name: values[gpu] for name, gpu in gpus.items()})
    if len(values) < FEW:
        return {gpus[one.host]: one for one in odd_of_few(compared)}
    return {gpus[one.host]: one for found in compare([compared], chance) for one in found.slow}


def _slow_in_pairs(pairs: Mapping[tuple[Gpu, Gpu], float], chance: float) -> list[Slow]:
    of_hosts: dict[tournament.Pair, float] = {}
    by_number: dict[int, dict[tournament.Pair, float]] = defaultdict(dict)
    for ((one, number), (other, _)), value in pairs.items():
        of_hosts[one, other] = max(value, of_hosts.get((one, other), 0.0))
        by_number[number][one, other] = value
    outcome = tournament.judge(of_hosts, chance)
    hosts = {standing.host for standing in outcome.hosts}
    links = {pair for pair, _ in outcome.links}
    found = [_slow("host", one.host, PAIRS, one.loss, one.z) for one in outcome.hosts]
    found += [Slow("link", " - ".join(pair), PAIRS, loss, math.nan) for pair, loss in outcome.links]
    for number, of_number in by_number.items() if len(by_number) > 1 else ():
        left = {pair: value for pair, value in of_number.items() if not hosts & {*pair} and pair not in links}
        if not left:
            continue
        of_gpus = tournament.judge(left, chance)
        found += [_slow("GPU", gpu_name((one.host, number)), PAIRS, one.loss, one.z) for one in of_gpus.hosts]
        for pair, loss in of_gpus.links:
            ends = " - ".join(gpu_name((host, number)) for host in pair)
            found.append(Slow("link", ends, PAIRS, loss, math.nan))
    return found


def _slow(part: Literal["host", "GPU"], name: str, figure: str, loss: float, z: float) -> Slow:
    return Slow(part, name, figure, -math.expm1(-loss), z)


def gpu_name(gpu: Gpu) -> str:
    """A GPU, as reports name it."""
    host, number = gpu
    return f"{host} GPU {number}"
