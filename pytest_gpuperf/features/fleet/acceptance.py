"""Which host, GPU or link of a cluster is slow, by what GPUs measured alone and hosts in pairs.

A GPU is a host's name and the GPU's number there. Alone, a host is as fast as the better half of its GPUs; the GPUs of
hosts that are well are held against one another. In pairs, GPUs of one number meet, all numbers at once; a pair of
hosts is as fast as its fastest GPUs are. Fewer than eight hosts are compared number by number, since a GPU of theirs
has few partners. If all GPUs of a host are slow in a metric, the host is named instead.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_gpuperf.features.fleet import tournament
from pytest_gpuperf.features.fleet.outliers import CHANCE, FEW, Standing, compare, find_odd_hosts
from pytest_gpuperf.features.fleet.results_of_hosts import Figure
from pytest_gpuperf.figures.metric import Better

Gpu: TypeAlias = tuple[str, int]
"""A host, and the number of the GPU there."""
GpuPair: TypeAlias = tuple[Gpu, Gpu]
"""GPUs of one number on two hosts."""
PAIRS = "pairs"
"""What the metric of a tournament is called."""


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


def find_slow_parts(alone: Sequence[Alone], pairs: Mapping[GpuPair, float]) -> tuple[Slow, ...]:
    """Names the slow parts, the slowest first. A host that is named explains its GPUs, and both explain their links.

    Args:
        alone: metrics of all GPUs alone.
        pairs: bandwidths of GPUs of one number on two hosts; empty if none were measured.
    """
    numbers = {number for (_, number), _ in pairs}
    # Each metric is held against others as one of GPUs and as one of hosts; pairs by all GPUs, and at most by each
    # number.
    chance = CHANCE / (2 * len(alone) + 2 * (1 + len(numbers)))
    found = [slow for figure in alone for slow in _find_slow_alone(figure, chance)]
    if pairs:
        found += _find_slow_in_pairs(pairs, chance)
    return tuple(sorted(found, key=lambda slow: -slow.loss))


def _find_slow_alone(figure: Alone, chance: float) -> list[Slow]:
    of_host: dict[str, dict[Gpu, float]] = defaultdict(dict)
    for gpu, value in figure.values.items():
        of_host[gpu[0]][gpu] = value
    # First hosts: half of all GPUs that are slow alike are no outliers among GPUs, as of two hosts one.
    better = {(host, 0): _compute_better_half(figure, own.values()) for host, own in of_host.items()}
    hosts = {host: one for (host, _), one in _find_odd(figure, better, chance).items()}
    found = [_make_slow("host", host, figure.name, one.loss, one.z) for host, one in hosts.items()]
    left = {gpu: value for gpu, value in figure.values.items() if gpu[0] not in hosts}
    if len(left) > len(of_host) - len(hosts):  # else each has one GPU, and was compared already
        found += _merge_into_hosts(figure.name, _find_odd(figure, left, chance), left)
    return found


def _merge_into_hosts(figure: str, slow: Mapping[Gpu, Standing], everything: Collection[Gpu]) -> list[Slow]:
    """The slow GPUs; in place of all GPUs of a host, the host.

    Args:
        figure: in which they are slow.
        slow: by GPU.
        everything: the GPUs that were compared.
    """
    of_host: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in everything:
        of_host[gpu[0]].append(gpu)
    found = []
    for host, gpus in of_host.items():
        named = {gpu: slow[gpu] for gpu in gpus if gpu in slow}
        if len(named) == len(gpus) > 1:
            loss, z = (statistics.median(getattr(one, name) for one in named.values()) for name in ("loss", "z"))
            found.append(_make_slow("host", host, figure, loss, z))
        else:
            found += [_make_slow("GPU", name_gpu(gpu), figure, one.loss, one.z) for gpu, one in named.items()]
    return found


def _compute_better_half(figure: Alone, values: Collection[float]) -> float:
    """The median of the better half: of a host, whose other GPUs may be slow by themselves."""
    ordered = sorted(values, reverse=figure.better == "higher")
    return statistics.median(ordered[: (len(ordered) + 1) // 2])


def _find_odd(figure: Alone, values: Mapping[Gpu, float], chance: float) -> dict[Gpu, Standing]:
    """The slow ones of these."""
    gpus = {name_gpu(gpu): gpu for gpu in values}
    compared = Figure("alone", figure.name, "", figure.better, {name: values[gpu] for name, gpu in gpus.items()})
    if len(values) < FEW:
        return {gpus[one.host]: one for one in find_odd_hosts(compared)}
    return {gpus[one.host]: one for found in compare([compared], chance) for one in found.slow}


def _find_slow_in_pairs(pairs: Mapping[GpuPair, float], chance: float) -> list[Slow]:
    of_hosts: dict[tournament.Pair, float] = {}
    for ((one, _), (other, _)), value in pairs.items():
        of_hosts[one, other] = max(value, of_hosts.get((one, other), 0.0))
    outcome = tournament.judge(of_hosts, chance)
    hosts = {standing.host for standing in outcome.hosts}
    links = {pair for pair, _ in outcome.links}
    found = [_make_slow("host", one.host, PAIRS, one.loss, one.z) for one in outcome.hosts]
    found += [Slow("link", " - ".join(pair), PAIRS, loss, math.nan) for pair, loss in outcome.links]
    if len(pairs) > len(of_hosts):  # else each host has one GPU, and was compared already
        left = {
            (one, other): value
            for (one, other), value in pairs.items()
            if not hosts & {one[0], other[0]} and (one[0], other[0]) not in links
        }
        found += _find_gpus_in_pairs(left, chance)
    return found


def _find_gpus_in_pairs(pairs: Mapping[GpuPair, float], chance: float) -> list[Slow]:
    by_number: dict[int, dict[GpuPair, float]] = defaultdict(dict)
    for (one, other), value in pairs.items():
        by_number[one[1]][one, other] = value
    # Against the usual pair of their number: the ways of some numbers to the network may be longer than others'.
    scaled = [
        {pair: value / statistics.median(own.values()) for pair, value in own.items()} for own in by_number.values()
    ]
    gpus = {name_gpu(gpu): gpu for pair in pairs for gpu in pair}
    if len({host for host, _ in gpus.values()}) >= FEW:  # then all numbers together know their spread better
        scaled = [{pair: value for own in scaled for pair, value in own.items()}]
    slow: dict[Gpu, Standing] = {}
    links: list[Slow] = []
    for together in scaled:
        outcome = tournament.judge(
            {(name_gpu(one), name_gpu(other)): v for (one, other), v in together.items()}, chance
        )
        slow |= {gpus[standing.host]: standing for standing in outcome.hosts}
        links += [Slow("link", " - ".join(pair), PAIRS, loss, math.nan) for pair, loss in outcome.links]
    return _merge_into_hosts(PAIRS, slow, gpus.values()) + links


def _make_slow(part: Literal["host", "GPU"], name: str, figure: str, loss: float, z: float) -> Slow:
    return Slow(part, name, figure, -math.expm1(-loss), z)


def name_gpu(gpu: Gpu) -> str:
    """A GPU, as reports name it."""
    host, number = gpu
    return f"{host} GPU {number}"
