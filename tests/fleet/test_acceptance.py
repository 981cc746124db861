"""Which part of a cluster is named as slow, on simulated figures: timings of a busy machine would accuse anybody."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping

import pytest

from pytest_gpuperf.fleet.acceptance import Alone, Gpu, Slow, slow_parts
from pytest_gpuperf.fleet.tournament import rounds

NOISE = 0.01  # of a measurement, as a logarithm
CLUSTERS = [(2, 1), (2, 2), (2, 8), (3, 1), (4, 1), (4, 8), (5, 1), (8, 2), (16, 8), (64, 1)]
"""Hosts, and GPUs of each."""
BIG = [one for one in CLUSTERS if one[0] > 3]

Losses = Mapping[object, float]
"""Of a host, a GPU, or a pair of hosts or GPUs, as a fraction."""


def names(hosts: int) -> list[str]:
    return [f"h{number:02}" for number in range(hosts)]


def figures(
    hosts: int, gpus: int, rng: random.Random, slow: Losses | None = None
) -> tuple[list[Alone], dict[tuple[Gpu, Gpu], float]]:
    """What a cluster measures in which these parts are slow."""
    losses = slow or {}

    def noisy(value: float) -> float:
        return value * rng.lognormvariate(0.0, NOISE)

    def of(gpu: Gpu) -> float:
        return max(losses.get(gpu, 0.0), losses.get(gpu[0], 0.0))

    everything = [(host, gpu) for host in names(hosts) for gpu in range(gpus)]
    alone = [
        Alone("matrix products", "higher", {gpu: noisy(7e14 * (1 - of(gpu))) for gpu in everything}),
        Alone("copies", "lower", {gpu: noisy(1e-3 / (1 - of(gpu))) for gpu in everything}),
    ]
    pairs = {}
    for one, other in itertools.chain.from_iterable(rounds(names(hosts))):
        for gpu in range(gpus):
            pair = (one, gpu), (other, gpu)
            loss = max(of(pair[0]), of(pair[1]), losses.get((one, other), 0.0), losses.get(pair, 0.0))
            pairs[pair] = noisy(4e10 * (1 - loss))
    return alone, pairs


def named(found: tuple[Slow, ...]) -> set[tuple[str, str]]:
    return {(slow.part, slow.name) for slow in found}


@pytest.mark.parametrize(("hosts", "gpus"), CLUSTERS)
def test_a_healthy_cluster_accuses_nobody(hosts: int, gpus: int) -> None:
    rng = random.Random(7)
    for _ in range(40):
        assert slow_parts(*figures(hosts, gpus, rng)) == ()


@pytest.mark.parametrize(("hosts", "gpus"), CLUSTERS)
def test_a_slow_host_is_named_and_nothing_else(hosts: int, gpus: int) -> None:
    rng = random.Random(8)
    for _ in range(10):
        host = rng.choice(names(hosts))
        found = slow_parts(*figures(hosts, gpus, rng, {host: 0.4}))
        assert named(found) == {("host", host)}
        figures_of = {slow.figure for slow in found}
        # In the only pair of two hosts, nothing tells which of them is slow.
        assert figures_of == {"matrix products", "copies"} | ({"pairs"} if hosts > 2 else set())


@pytest.mark.parametrize(("hosts", "gpus"), [one for one in CLUSTERS if one[1] > 1])
def test_a_slow_gpu_is_named_and_its_host_is_not(hosts: int, gpus: int) -> None:
    rng = random.Random(9)
    for _ in range(10):
        gpu = rng.choice(names(hosts)), rng.randrange(gpus)
        found = slow_parts(*figures(hosts, gpus, rng, {gpu: 0.4}))
        assert named(found) == {("GPU", f"{gpu[0]} GPU {gpu[1]}")}
        assert len(found) == (3 if hosts > 2 else 2)


@pytest.mark.parametrize(("hosts", "gpus"), [(3, 1), *BIG])
def test_a_slow_link_between_hosts_is_named_and_neither_host_is(hosts: int, gpus: int) -> None:
    rng = random.Random(10)
    for _ in range(10):
        link = rng.choice(list(itertools.chain.from_iterable(rounds(names(hosts)))))
        assert named(slow_parts(*figures(hosts, gpus, rng, {link: 0.4}))) == {("link", " - ".join(link))}


@pytest.mark.parametrize(("hosts", "gpus"), [one for one in BIG if one[1] > 1])
def test_a_slow_link_between_two_gpus_is_named(hosts: int, gpus: int) -> None:
    rng = random.Random(11)
    for _ in range(10):
        one, other = rng.choice(list(itertools.chain.from_iterable(rounds(names(hosts)))))
        gpu = rng.randrange(gpus)
        found = slow_parts(*figures(hosts, gpus, rng, {((one, gpu), (other, gpu)): 0.4}))
        assert named(found) == {("link", f"{one} GPU {gpu} - {other} GPU {gpu}")}


def test_several_parts_are_named_the_slowest_first() -> None:
    slow: Losses = {"h03": 0.5, ("h05", 1): 0.3, "h09": 0.2}
    found = slow_parts(*figures(16, 2, random.Random(12), slow))
    assert named(found) == {("host", "h03"), ("GPU", "h05 GPU 1"), ("host", "h09")}
    assert [one.loss for one in found] == sorted((one.loss for one in found), reverse=True)
    assert found[0].name == "h03"
    assert found[0].loss == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("loss", "accused"), [(0.05, False), (0.2, True)])
def test_of_few_hosts_only_a_large_loss_is_named(loss: float, accused: bool) -> None:
    found = slow_parts(*figures(2, 1, random.Random(13), {"h01": loss}))
    assert bool(found) is accused


def test_without_pairs_hosts_are_compared_alone() -> None:
    alone, _ = figures(4, 2, random.Random(14), {"h01": 0.4})
    assert named(slow_parts(alone, {})) == {("host", "h01")}


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        (
            Slow("host", "gpu-b", "pairs", 0.31, 12.34),
            "host gpu-b: 31.0 % slower than the other hosts in pairs (z 12.3)",
        ),
        (Slow("GPU", "a GPU 3", "copies", 0.5, math.nan), "GPU a GPU 3: 50.0 % slower than the other GPUs in copies"),
    ],
)
def test_a_slow_part_is_told_in_words(slow: Slow, words: str) -> None:
    assert str(slow) == words
