"""Made-up clusters: what hosts, GPUs and pairs measure, with parts that are slow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from pytest_gpuperf.features.fleet.acceptance import Alone, Gpu
from pytest_gpuperf.features.fleet.tournament import plan_rounds

NOISE = 0.01  # of a measurement, as a logarithm

Losses = Mapping[object, float]
"""The losses of hosts, GPUs, or pairs of hosts or GPUs, as fractions."""


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
    for one, other in itertools.chain.from_iterable(plan_rounds(names(hosts))):
        for gpu in range(gpus):
            pair = (one, gpu), (other, gpu)
            loss = max(of(pair[0]), of(pair[1]), losses.get((one, other), 0.0), losses.get(pair, 0.0))
            pairs[pair] = noisy(4e10 * (1 - loss))
    return alone, pairs
