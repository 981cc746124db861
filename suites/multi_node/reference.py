"""What one device computes, and what the figures of a cluster's hosts say of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from pytest_gpuperf import Matrix
from pytest_gpuperf.features.fleet.acceptance import PAIRS, Alone, Gpu, Slow, find_slow_parts, name_gpu
from suites.multi_node.programs.hosts import Load, Seen
from suites.multi_node.programs.layouts import Task
from suites.shared.step import Tensors

LEAST_LOSS = 0.005
"""The share of packets that are sent again from which on a link is lossy: switches drop far fewer."""
MUCH = 5.0
"""A lossy link sends so many times as many packets again as a good one."""


def on_one_device(task: Task, steps: int) -> list[Tensors]:
    """Training of the whole network on the whole batch: for each step the loss, gradients, and weights after it."""
    weights = task.weights()
    x, target = task.batch()
    told = []
    for _ in range(steps):
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        loss = ((output_of(leaves, task.blocks, x) - target) ** 2).sum() / 2
        gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        weights = {name: value - task.rate * gradients[name].sign() for name, value in weights.items()}
        found = {"loss": loss.detach()}
        for name, weight in weights.items():
            found |= {f"{name} gradient": gradients[name], name: weight}
        told.append(found)
    return told


def output_of(weights: Tensors, blocks: int, x: torch.Tensor) -> torch.Tensor:
    """The network's output, by its formula."""
    for block in range(blocks):
        hidden = x @ weights[f"{block}.up"].T
        x = x + hidden * (hidden > 0) @ weights[f"{block}.down"].T
    return x


def share_of(whole: Tensors, ranks: int, rank: int) -> Tensors:
    """What a rank holds of them, if so many ranks split the tensors and this one has this number among them."""
    held = {}
    for name, value in whole.items():
        layer = name.partition(" ")[0]
        held[name] = value if name == "loss" else value.chunk(ranks, 0 if layer.endswith("up") else 1)[rank]
    return held


def product_rate(load: Load, seen: Seen) -> float:
    """FLOP/s of a GPU's matrix products."""
    return 2 * load.width**3 / statistics.median(seen.product)


def copy_rate(load: Load, seen: Seen) -> float:
    """B/s that a GPU reads and writes of its own memory."""
    return 2 * load.copied / statistics.median(seen.copy)


def link_rate(load: Load, seen: Seen) -> float:
    """B/s of a rank's buffer, in the sum inside its host."""
    return load.linked / statistics.median(seen.linked)


def paired_rates(load: Load, seen: Sequence[Seen]) -> dict[tuple[Gpu, Gpu], float]:
    """B/s in each direction between GPUs of one number on two hosts, by the end that took longer."""
    by_place = {(one.node, one.local_rank): one for one in seen}
    found = {}
    for one in seen:
        for partner, taken in one.paired.items():
            other = by_place[partner, one.local_rank]
            if one.node < partner:
                slower = max(statistics.median(taken), statistics.median(other.paired[one.node]))
                found[gpu_of(one), gpu_of(other)] = load.sent / slower
    return found


def gpu_of(seen: Seen) -> Gpu:
    """The rank's GPU; without GPUs the rank itself."""
    return seen.host, seen.local_rank


def of_gpus(load: Load, seen: Sequence[Seen]) -> list[Alone]:
    """The figures of all GPUs alone."""
    rates: dict[str, Callable[[Load, Seen], float]] = {"matrix products": product_rate, "copies in memory": copy_rate}
    if all(one.linked for one in seen):
        rates["sums inside the host"] = link_rate
    return [Alone(name, "higher", {gpu_of(one): rate(load, one) for one in seen}) for name, rate in rates.items()]


def found_slow(load: Load, seen: Sequence[Seen]) -> tuple[Slow, ...]:
    """The slow hosts, GPUs and links, the slowest first."""
    return find_slow_parts(of_gpus(load, seen), paired_rates(load, seen))


def is_always_slow(slow: Slow, seen: Sequence[Seen]) -> bool:
    """Whether even the best sample of a part is slower than half of the others' samples, which noise seldom does."""
    host_of = {one.node: one.host for one in seen}
    own: list[float] = []
    others: list[float] = []
    for one in seen:
        taken = {"matrix products": one.product, "copies in memory": one.copy, "sums inside the host": one.linked}
        samples = [({one.host}, taken.get(slow.figure, ()))]
        if slow.figure == PAIRS:
            samples = [({one.host, host_of[partner]}, paired) for partner, paired in one.paired.items()]
        for ends, seconds in samples:
            is_own = ends == set(slow.name.split(" - ")) if slow.part == "link" else slow.name in ends
            (own if is_own else others).extend(seconds)
    return min(own) > statistics.median(others)


@dataclass(frozen=True, slots=True)
class Lossy:
    """A host or a link that loses packets."""

    part: Literal["host", "link"]
    name: str
    resent: float
    """The share of packets that are sent again."""
    usual: float
    figure: str = "packets"

    def __str__(self) -> str:
        """The part in words: link h2 - h4: 2.1 % of its packets are sent again (usually 0.0 %)."""
        resent, usual = (f"{100 * share:.1f} %" for share in (self.resent, self.usual))
        return f"{self.part} {self.name}: {resent} of its packets are sent again (usually {usual})"


def found_lossy(seen: Sequence[Seen]) -> tuple[Lossy, ...]:
    """The links that lose more packets than the others; instead of all links of a host, the host."""
    host_of = {one.node: one.host for one in seen}
    shares: dict[tuple[str, str], float] = {}
    for one in seen:
        for partner, share in one.resent.items():
            pair = (one.host, host_of[partner]) if one.node < partner else (host_of[partner], one.host)
            shares[pair] = max(share, shares.get(pair, 0.0))
    usual = sorted(shares.values())[len(shares) // 4] if shares else 0.0  # one host has half of four hosts' links
    lossy = {pair: share for pair, share in shares.items() if share > max(LEAST_LOSS, MUCH * usual)}
    found = []
    for host in host_of.values():
        own = [share for pair, share in shares.items() if host in pair]
        if len(own) > 1 and all(share in lossy.values() for share in own):
            found.append(Lossy("host", host, statistics.median(own), usual))
            lossy = {pair: share for pair, share in lossy.items() if host not in pair}
    return (*found, *(Lossy("link", " - ".join(pair), share, usual) for pair, share in lossy.items()))


def differing(seen: Sequence[Seen]) -> Iterator[str]:
    """The GPUs whose product of the same matrices differs from that of most."""
    usual = statistics.mode(one.digest for one in seen)
    for one in seen:
        if one.digest != usual:
            yield f"{name_gpu(gpu_of(one))}: its product of the same matrices differs from the others'"


def matrix_of_hosts(load: Load, seen: Sequence[Seen]) -> Matrix:
    """B/s of each pair of hosts that has met, by its slowest GPUs."""
    hosts = {one.node: one.host for one in sorted(seen, key=lambda one: one.node)}
    places = {host: place for place, host in enumerate(hosts.values())}
    rows: list[list[float | None]] = [[None] * len(places) for _ in places]
    for ((one, _), (other, _)), rate in paired_rates(load, seen).items():
        for row, column in ((places[one], places[other]), (places[other], places[one])):
            rows[row][column] = min(rate, rows[row][column] or rate)
    return Matrix.of(rows, "B/s", "higher", list(places))
