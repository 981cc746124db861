"""Which part of a cluster is named as slow, on simulated figures: timings of a busy machine would accuse anybody."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from pytest_gpuperf.features.fleet.acceptance import Slow, find_slow_parts
from pytest_gpuperf.features.fleet.tournament import plan_rounds
from tests.fleet.clusters import Losses, figures, names

CLUSTERS = [(2, 1), (2, 2), (2, 8), (3, 1), (4, 1), (4, 8), (5, 1), (8, 2), (16, 8), (64, 1)]
"""Hosts, and GPUs of each."""
BIG = [one for one in CLUSTERS if one[0] > 3]


def named(found: tuple[Slow, ...]) -> set[tuple[str, str]]:
    return {(slow.part, slow.name) for slow in found}


@pytest.mark.parametrize(("hosts", "gpus"), CLUSTERS)
def test_a_healthy_cluster_accuses_nobody(hosts: int, gpus: int) -> None:
    rng = random.Random(7)
    for _ in range(40):
        assert find_slow_parts(*figures(hosts, gpus, rng)) == ()


@pytest.mark.parametrize(("hosts", "gpus"), CLUSTERS)
def test_a_slow_host_is_named_and_nothing_else(hosts: int, gpus: int) -> None:
    rng = random.Random(8)
    for _ in range(10):
        host = rng.choice(names(hosts))
        found = find_slow_parts(*figures(hosts, gpus, rng, {host: 0.4}))
        assert named(found) == {("host", host)}
        figures_of = {slow.figure for slow in found}
        # In the only pair of two hosts, nothing tells which of them is slow.
        assert figures_of == {"matrix products", "copies"} | ({"pairs"} if hosts > 2 else set())


@pytest.mark.parametrize(("hosts", "gpus"), [one for one in CLUSTERS if one[1] > 1])
def test_a_slow_gpu_is_named_and_its_host_is_not(hosts: int, gpus: int) -> None:
    rng = random.Random(9)
    for _ in range(10):
        gpu = rng.choice(names(hosts)), rng.randrange(gpus)
        found = find_slow_parts(*figures(hosts, gpus, rng, {gpu: 0.4}))
        assert named(found) == {("GPU", f"{gpu[0]} GPU {gpu[1]}")}
        assert len(found) == (3 if hosts > 2 else 2)


@pytest.mark.parametrize(("hosts", "gpus"), [(3, 1), *BIG])
def test_a_slow_link_between_hosts_is_named_and_neither_host_is(hosts: int, gpus: int) -> None:
    rng = random.Random(10)
    for _ in range(10):
        link = rng.choice(list(itertools.chain.from_iterable(plan_rounds(names(hosts)))))
        assert named(find_slow_parts(*figures(hosts, gpus, rng, {link: 0.4}))) == {("link", " - ".join(link))}


@pytest.mark.parametrize(("hosts", "gpus"), [one for one in BIG if one[1] > 1])
def test_a_slow_link_between_two_gpus_is_named(hosts: int, gpus: int) -> None:
    rng = random.Random(11)
    for _ in range(10):
        one, other = rng.choice(list(itertools.chain.from_iterable(plan_rounds(names(hosts)))))
        gpu = rng.randrange(gpus)
        found = find_slow_parts(*figures(hosts, gpus, rng, {((one, gpu), (other, gpu)): 0.4}))
        assert named(found) == {("link", f"{one} GPU {gpu} - {other} GPU {gpu}")}


def test_a_slow_link_of_few_hosts_has_the_loss_that_it_has() -> None:
    """Without their only other partner, two of three hosts would seem to be quicker than they are."""
    (found,) = find_slow_parts(*figures(3, 1, random.Random(15), {("h00", "h01"): 0.4}))
    assert (found.part, found.name) == ("link", "h00 - h01")
    assert found.loss == pytest.approx(0.4, abs=0.05)


def test_a_host_is_named_instead_of_all_its_gpus() -> None:
    """By chance one of its GPUs is missed in a few of a hundred runs, and then the others are named."""
    rng, right = random.Random(2), 0
    for _ in range(40):
        host = rng.choice(names(8))
        right += named(find_slow_parts(*figures(8, 8, rng, {host: 0.1}))) == {("host", host)}
    assert right >= 34


def test_chance_names_no_link_of_a_cluster_whose_pairs_decide_their_hosts_medians() -> None:
    """In two of these runs a link is named if a pair counts for its own hosts."""
    rng = random.Random(1)
    for _ in range(50):
        assert find_slow_parts(*figures(8, 8, rng)) == ()


def test_several_parts_are_named_the_slowest_first() -> None:
    slow: Losses = {"h03": 0.5, ("h05", 1): 0.3, "h09": 0.2}
    found = find_slow_parts(*figures(16, 2, random.Random(12), slow))
    assert named(found) == {("host", "h03"), ("GPU", "h05 GPU 1"), ("host", "h09")}
    assert [one.loss for one in found] == sorted((one.loss for one in found), reverse=True)
    assert found[0].name == "h03"
    assert found[0].loss == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("loss", "accused"), [(0.05, False), (0.2, True)])
def test_of_few_hosts_only_a_large_loss_is_named(loss: float, accused: bool) -> None:
    found = find_slow_parts(*figures(2, 1, random.Random(13), {"h01": loss}))
    assert bool(found) is accused


def test_without_pairs_hosts_are_compared_alone() -> None:
    alone, _ = figures(4, 2, random.Random(14), {"h01": 0.4})
    assert named(find_slow_parts(alone, {})) == {("host", "h01")}


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
