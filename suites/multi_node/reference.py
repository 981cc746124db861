"""What one device computes, and what the figures of a cluster's hosts say of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import torch

from pytest_gpuperf import Matrix
from pytest_gpuperf.features.fleet.acceptance import PAIRS, Alone, Gpu, Slow, gpu_name, slow_parts
from suites.multi_node.programs.hosts import Load, Seen
from suites.multi_node.programs.layouts import Task
from suites.shared.step import Tensors


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
    return slow_parts(of_gpus(load, seen), paired_rates(load, seen))


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


def differing(seen: Sequence[Seen]) -> Iterator[str]:
    """The GPUs whose product of the same matrices differs from that of most."""
    usual = statistics.mode(one.digest for one in seen)
    for one in seen:
        if one.digest != usual:
            yield f"{gpu_name(gpu_of(one))}: its product of the same matrices differs from the others'"


def matrix_of_hosts(load: Load, seen: Sequence[Seen]) -> Matrix:
    """B/s of each pair of hosts that has met, by its slowest GPUs."""
    hosts = {one.node: one.host for one in sorted(seen, key=lambda one: one.node)}
    places = {host: place for place, host in enumerate(hosts.values())}
    rows: list[list[float | None]] = [[None] * len(places) for _ in places]
    for ((one, _), (other, _)), rate in paired_rates(load, seen).items():
        for row, column in ((places[one], places[other]), (places[other], places[one])):
            rows[row][column] = min(rate, rows[row][column] or rate)
    return Matrix.of(rows, "B/s", "higher", list(places))
